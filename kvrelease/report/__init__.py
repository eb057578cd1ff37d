"""Rendering artifacts; computes nothing."""
