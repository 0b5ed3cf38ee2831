"""Views of what was run."""
