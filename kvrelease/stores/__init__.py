"""Persisted KV: whose a store is."""
