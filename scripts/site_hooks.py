"""What the documentation needs to become a site: called by mkdocs.

Links that leave `docs` lead to files of a clone, and the site has none of those: there, their names
are shown instead. What stands behind the language of a fence is for the tests, which act the pages
out, and no Markdown that is known to mkdocs. Tables of fields and options are filled in, and
addresses of earlier versions lead to the pages of today.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import doc_tables

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)#\s]+)[^)]*\)")
# The same words may name a part of the menu, and two parts of a page cannot have one name.
_HEADINGS_BELOW = re.compile(r'(?P<start><nav class="md-nav" aria-label=)"(?P<heading>[^"]+)"')
# Browsers break lines behind hyphens, which options begin with.
_OPTION = re.compile(r"<code>(?=-[\w=.-]{1,20}</code>|\w{1,16}</code>)")
_FENCE = re.compile(r"^(?P<fence> *```\w+) .*$", re.MULTILINE)

MOVED = {
    "checks": "suites",
    "ci": "suites",
    "compare-and-trend": "sweeps",
    "crews": "how-tests-run",
    "debugging": "debugging-and-timeline",
    "is-it-slower": "statistics",
    "isolation": "how-tests-run",
    "job-outcomes": "run-results",
    "known-limitations": "limitations",
    "live-page": "reports",
    "moving-from-mpi-pytest": "moving",
    "moving-from-pytest_parallel": "moving",
    "my-suite-hangs": "hangs-and-crashes",
    "notify": "reports",
    "rankwise-toml": "site-file",
    "remote-machines": "ssh-and-cloud",
    "schedulers": "how-tests-run",
    "slurm-jobs": "slurm",
    "spec-reference": "document-reference",
    "timeline": "debugging-and-timeline",
}
"""Pages of earlier versions, and where what they said is now."""

_REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<meta http-equiv="refresh" content="0; url={new}.html">
<link rel="canonical" href="{new}.html">
<p>This page is now <a href="{new}.html">{new}</a>.
"""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page as mkdocs can read it."""
    text = _FENCE.sub(r"\g<fence>", _OUTSIDE.sub(_named, markdown))
    return doc_tables.fill(text)


def on_page_content(html: str, **_: object) -> str:
    """Keep options in one piece, and let no cell be the head of a column that has no name."""
    return _OPTION.sub('<code class="whole">', html.replace("<th></th>", "<td></td>"))


def on_post_page(output: str, **_: object) -> str:
    """Name what the theme leaves without a name, or gives one twice, for people who hear a page."""
    return _HEADINGS_BELOW.sub(r'\g<start>"Below \g<heading>"', _name_search(output))


def on_post_template(output_content: str, **_: object) -> str:
    """Do the same for pages that have no Markdown, such as 404.html."""
    return _name_search(output_content)


def on_post_build(config: Any, **_: object) -> None:
    """Write a page at each old address that leads to the new one."""
    folder = Path(config["site_dir"])
    for old, new in MOVED.items():
        (folder / f"{old}.html").write_text(_REDIRECT.format(new=new), encoding="utf-8")


def _name_search(output: str) -> str:
    return output.replace(' role="dialog">', ' role="dialog" aria-label="Search">', 1)


def _named(link: re.Match[str]) -> str:
    text, path = link["text"], link["path"]
    return f"{text} (`{path}` in a clone)" if text.strip("`") != path else f"`{path}`"
