"""Readers of traffic logs: one request at a time, whatever wrote the log."""
