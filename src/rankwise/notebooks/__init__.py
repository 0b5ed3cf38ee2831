"""Notebooks: run as tests, with an outcome that can be trusted."""
