"""Hosts with a login, reached by OpenSSH."""
