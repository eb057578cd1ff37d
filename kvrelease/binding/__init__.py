"""Naming a cache by what made it, and telling whose entries a hit came from."""
