"""What the documentation needs to become a site: called by mkdocs for every page.

Links that leave `docs` lead to files of a clone, and the site has none of those: there, their names
are shown instead. What stands behind the language of a fence is for the tests, which act the pages
out, and no Markdown that is known to mkdocs.
"""

import re

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"^(?P<fence> *```\w+) .*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Give the page as mkdocs can read it."""
    return _FENCE.sub(r"\g<fence>", _OUTSIDE.sub(_named, markdown))


def _named(link: re.Match[str]) -> str:
    text, path = link["text"], link["path"]
    return f"{text} (`{path}` in a clone)" if text.strip("`") != path else f"`{path}`"
