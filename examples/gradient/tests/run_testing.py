"""Tests for all Notebooks, in Python."""

import os

print("run_testing.py of", os.environ["RUNTIME"], "in", os.environ.get("NOTEBOOK", "no Notebook"))
