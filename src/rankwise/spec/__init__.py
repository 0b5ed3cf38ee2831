"""What people write: YAML documents, the models they become, and what is wrong with them."""
