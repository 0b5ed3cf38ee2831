"""Batch systems as backends."""
