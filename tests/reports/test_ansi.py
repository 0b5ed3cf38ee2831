from __future__ import annotations

import pytest

from rankwise.reports.markup import as_markup
from rankwise.safe_text import clean, cut


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m not", '<span class="a1">red</span> not'),
        ("\x1b[1;92mgood\x1b[22m\x1b[39m!", '<span class="a2 b">good</span>!'),
        ("\x1b[38;5;31mmany\x1b[0m", "many"),
        ("a\x1b[2Jb\x1b]0;title\x07c\x08d", "abcd"),
        ("<b>&\x1b[31m<i>", '&lt;b&gt;&amp;<span class="a1">&lt;i&gt;</span>'),
        ("\x1b[31", "31"),
        ("", ""),
    ],
)
def test_colours_stay_and_nothing_else_of_a_terminal_does(line: str, shown: str) -> None:
    assert as_markup(line) == shown


def test_a_line_without_end_is_cut() -> None:
    assert len(as_markup("x" * 10**6)) < 500
    assert len(cut(clean("\x1b[31m" + "x" * 10**6, keep_colours=False))) < 500
