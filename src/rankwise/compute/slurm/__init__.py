"""A Slurm cluster as a compute."""
