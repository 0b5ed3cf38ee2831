"""Worlds of workers that a controller starts: on this machine or on the nodes of Slurm."""
