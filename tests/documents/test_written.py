"""Contents and their places."""

from __future__ import annotations

import pytest

from rankwise.documents.written import Location, SourcePosition, copied
from rankwise.documents.yaml_reader import read_text

CONTENTS = read_text("a: 1\nb:\n  c: [x, {d: y}]\n  e:\n", "x").contents


@pytest.mark.parametrize(
    ("path", "name", "key_at", "value_at"),
    [
        ((), "", (1, 1), (1, 1)),
        (("a",), "a", (1, 1), (1, 4)),
        (("b",), "b", (2, 1), (3, 3)),
        (("b", "c"), "b.c", (3, 3), (3, 6)),
        (("b", "c", 0), "b.c[1]", (3, 7), (3, 7)),
        (("b", "c", 1, "d"), "b.c[2].d", (3, 11), (3, 14)),
        # What is empty has the place of its name.
        (("b", "e"), "b.e", (4, 3), (4, 3)),
        # Steps that the document does not have are passed over.
        (("b", "kind", "c"), "b.c", (3, 3), (3, 6)),
        (("a", "path"), "a", (1, 1), (1, 4)),
        (("b", "c", 7), "b.c", (3, 3), (3, 6)),
    ],
)
def test_a_path_leads_to_a_name_and_two_places(
    path: tuple[int | str, ...], name: str, key_at: SourcePosition, value_at: SourcePosition
) -> None:
    found = Location(CONTENTS, path)
    assert (found.name, found.key_at, found.value_at) == (name, key_at, value_at)


def test_a_copy_is_equal_but_shares_nothing() -> None:
    copy = copied(CONTENTS)
    assert copy == CONTENTS
    assert copy is not CONTENTS
    assert copy["b"]["c"] is not CONTENTS["b"]["c"]
    assert Location(copy, ("b", "c", 1, "d")).value_at == (3, 14)
