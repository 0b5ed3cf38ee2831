"""`rankwise rollback`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rankwise.steps.releases import deploy
from tests.cli.conftest import Said

Rankwise = Callable[..., Said]


def test_an_earlier_release_is_put_in_use_again(rankwise: Rankwise, project: Path) -> None:
    build = project / "build"
    build.mkdir()
    for name in ("first", "second"):
        (build / "file").write_text(name)
        deploy(build, project / "releases", name, keep=3)
    listed = rankwise("rollback", "releases", "--list")
    assert [line[:8].strip() for line in listed.out.splitlines()] == ["first", "* second"]
    said = rankwise("rollback", "releases")
    assert said.code == 0
    assert [line[:8].strip() for line in said.out.splitlines()] == ["* first", "second"]
    assert (project / "releases" / "current" / "file").read_text() == "first"
    data = json.loads(rankwise("rollback", "releases", "--to", "second", "--json").out)
    assert [(one["name"], one["current"]) for one in data] == [("first", False), ("second", True)]


def test_what_cannot_be_is_said(rankwise: Rankwise, project: Path) -> None:
    said = rankwise("rollback", "nowhere")
    assert (said.code, said.err) == (2, "rankwise: nowhere: there is no such folder\n")
    (project / "empty").mkdir()
    assert "there are no releases" in rankwise("rollback", "empty").err
    assert "there are no releases" in rankwise("rollback", "empty", "--list").err
