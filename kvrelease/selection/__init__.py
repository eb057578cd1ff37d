"""Choosing a representative prompt set from a traffic log, under a budget."""
