"""A Kubernetes cluster as a compute."""
