"""Instances that a provider's own command line makes, uses and deletes."""
