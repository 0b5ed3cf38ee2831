"""Machines that share no files with this one."""
