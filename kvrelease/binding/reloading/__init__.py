"""Weights loaded in place, while clients wait at the gate (docs/reload.md)."""
