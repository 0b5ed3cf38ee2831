"""Machines that are elsewhere and share no files with this one: what they have in common."""
