"""Prompt sets: load, check, cut into a prefix tree."""
