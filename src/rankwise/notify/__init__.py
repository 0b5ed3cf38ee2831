"""Tells people what became of a run, by mail or into a chat. Nothing here ever fails a run."""
