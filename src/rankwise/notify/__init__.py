"""Notifies people of the end of a run, by mail or into a chat. Nothing here ever fails a run."""
