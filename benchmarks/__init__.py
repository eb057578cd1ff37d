"""Measurements behind the figures in docs/: each module prints a table, none is a test."""
