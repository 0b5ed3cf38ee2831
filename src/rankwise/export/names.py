"""Names as Kubernetes takes them, each only once."""

from __future__ import annotations

from rankwise.compute.kubernetes.layout import dns_name

_MOST = 40
"""Operators add to a name, such as `-worker-127`, and all of it must fit into 63."""


def name_for(text: str, taken: set[str]) -> str:
    """Make a name of any text that is not taken yet, and take it."""
    return unique(dns_name(text, _MOST), taken)


def unique(name: str, taken: set[str]) -> str:
    """Give a name that is not taken yet, and take it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found
