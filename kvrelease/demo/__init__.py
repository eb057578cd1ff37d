"""The incident on the built-in engine: a pair of small releases, one shared store, with and without bound keys."""
