"""Reports of runs, for people and programs."""
