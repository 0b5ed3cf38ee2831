"""Documents and the site file: read, checked, and turned into models."""
