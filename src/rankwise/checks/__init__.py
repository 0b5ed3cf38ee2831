"""What must be true of a task that has run, and whether it is."""
