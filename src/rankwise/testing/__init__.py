"""The pytest plugin: tests that run on many ranks, one verdict each."""
