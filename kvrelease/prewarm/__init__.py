"""Filling a new release's prefix cache, and proving it is resident."""
