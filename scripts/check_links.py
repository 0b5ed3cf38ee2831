"""Check that the links between the Markdown files of this project lead somewhere.

    python3 scripts/check_links.py

A link to a file must name one that exists, and a link to a heading (`#like-this`) one that is in
that file. Links to the web are not followed: a check that needs the network fails on days when
nothing is wrong. Standard library only.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
# [text](target "title"), ![image](target), and [name]: target
LINK = re.compile(
    r"\]\(\s*<?(?P<inline>[^\s<>()]+)>?[^()]*\)|^ {0,3}\[[^\]]+\]:\s+<?(?P<named>[^\s<>]+)",
    re.MULTILINE,
)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(?P<title>.+?)[ \t#]*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s+(?:name|id)=[\"'](?P<name>[^\"']+)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def _documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def _blank(match: re.Match[str]) -> str:
    """Empty a stretch of code, but keep its lines, so that line numbers stay right."""
    return "\n" * match[0].count("\n")


@cache
def _prose(document: Path) -> str:
    """Return the text of `document` without its blocks of code."""
    return FENCE.sub(_blank, document.read_text(encoding="utf-8"))


@cache
def _anchors(document: Path) -> frozenset[str]:
    """Return the names of the headings, made as GitHub makes them."""
    found: dict[str, int] = {}
    anchors = {match["name"] for match in ANCHOR.finditer(_prose(document))}
    for match in HEADING.finditer(_prose(document)):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", match["title"])
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    return frozenset(anchors)


def _complaint(document: Path, target: str) -> str | None:
    """Say what is wrong with a link to `target` in `document`, or None if nothing is."""
    if ELSEWHERE.match(target):
        return None
    name, _, anchor = unquote(target).partition("#")
    file = (document.parent / name).resolve() if name else document
    if not file.is_relative_to(ROOT):
        return "is outside of the project"
    if not file.exists():
        return "does not exist"
    if anchor and file.suffix == ".md" and anchor not in _anchors(file):
        return f"has no such heading in {file.relative_to(ROOT)}"
    return None


def _broken_links(document: Path) -> Iterator[str]:
    text = CODE.sub(_blank, _prose(document))
    for match in LINK.finditer(text):
        target = match["inline"] or match["named"]
        if complaint := _complaint(document, target):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{document.relative_to(ROOT)}:{line}: {target} {complaint}"


def main() -> int:
    documents = _documents()
    broken = [line for document in documents for line in _broken_links(document)]
    if broken:
        print("\n".join(broken), file=sys.stderr)
        print(f"links: {len(broken)} lead nowhere", file=sys.stderr)
        return 1
    print(f"links: all resolve (Markdown files: {len(documents)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
