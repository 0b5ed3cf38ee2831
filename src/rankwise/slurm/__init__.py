"""Slurm's own commands: what they are asked, and what they answer."""
