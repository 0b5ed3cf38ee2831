"""How the ranks of a program find each other."""
