"""The site of the documentation: made without a warning, and looked at without a network."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.conftest import require_environment

ROOT = Path(__file__).parents[2]
_REFERENCE = re.compile(r"(?:src|href)=\"?(https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = require_environment("docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [environment.python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Strict: a link that leads nowhere is an error, and so is a page that no menu has.
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*>", page.read_text())
        assert loaded
        assert not [one for one in loaded if _REFERENCE.search(one)], page


def test_headings_behind_code_are_headings(site: Path) -> None:
    """A fence that mkdocs cannot read swallows the rest of its page."""
    for source in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.DOTALL | re.MULTILINE)
        wanted = len(re.findall(r"^## ", text, flags=re.MULTILINE))
        assert (site / f"{source.stem}.html").read_text().count("<h2 id=") == wanted, source
