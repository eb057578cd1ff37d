"""A simulator of prefix caches: what a sequence of requests would hit, on how many replicas, under which routing."""
