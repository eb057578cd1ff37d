"""The record of releases, namespaces, epochs and what served where."""
