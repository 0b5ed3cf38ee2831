"""Runs plans: what is ready, where it goes, what became of it."""
