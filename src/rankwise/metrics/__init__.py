"""Measurements found in outputs."""
