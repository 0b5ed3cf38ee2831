"""A cluster of Kubernetes as a backend."""
