"""The live page: the runs of a store in a browser, as they happen."""
