"""The command line: a thin shell, one module a verb."""
