"""Verbs that only deal with documents: validate, schema, init."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwise.documents.load import TYPES
from tests.cli.conftest import Said

Rankwise = Callable[..., Said]


def test_types_are_listed_with_what_they_are(rankwise: Rankwise) -> None:
    lines = rankwise("init").out.splitlines()
    assert [line.split()[0] for line in lines] == list(TYPES)
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("name", TYPES)
def test_a_document_to_start_from_is_valid(rankwise: Rankwise, name: str, project: Path) -> None:
    (project / "src").mkdir()
    said = rankwise("init", name, "job.yaml")
    assert said.code == 0
    assert said.out == "job.yaml is there; to see what it would run:  rankwise plan job.yaml\n"
    assert Path("job.yaml").read_text() == rankwise("init", name).out
    said = rankwise("validate", "job.yaml")
    assert (said.code, said.out.splitlines()[-1]) == (0, "job.yaml: ok")


def test_a_site_file_that_others_can_write_ends_every_verb_that_would_obey_it(
    rankwise: Rankwise, project: Path
) -> None:
    rankwise("init", "command", "job.yaml")
    (project / "rankwise.toml").write_text("")
    (project / "rankwise.toml").chmod(0o666)
    for words in (("plan", "job.yaml"), ("run", "job.yaml"), ("doctor",)):
        said = rankwise(*words)
        assert said.code == 2, said
        assert f"others can write it: chmod o-w {project}/rankwise.toml" in said.err.replace(
            "go-w", "o-w"
        )
    assert not (project / ".rankwise" / "runs").exists()


def test_people_are_told_which_site_file_counts(
    rankwise: Rankwise, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "rankwise.toml").write_text("")
    inner = project / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    Path("src").mkdir()
    rankwise("init", "command", "job.yaml")
    planned = "".join(rankwise("plan", "job.yaml").out.split())
    assert f"thesitefileis{project}/rankwise.toml" in planned
    assert f"site file {project}/rankwise.toml\n" in rankwise("doctor").out


def test_doctor_checks_a_compute_that_stands_for_many_when_it_is_named(
    rankwise: Rankwise, project: Path
) -> None:
    (project / "rankwise.toml").write_text('[compute."odd*"]\nbackend = "local"\n')
    assert "it is this machine" not in rankwise("doctor").out
    said = rankwise("doctor", "odd*")
    assert (said.code, said.out) == (0, "odd*\n  ok    it is this machine\n")


def test_a_file_that_is_there_is_left_alone(rankwise: Rankwise) -> None:
    Path("job.yaml").write_text("mine")
    said = rankwise("init", "MpiJob", "job.yaml")
    assert said.code == 2
    assert said.err.startswith("rankwise: job.yaml: it is there already")
    assert Path("job.yaml").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(rankwise: Rankwise) -> None:
    said = rankwise("init", "MpiJob", "missing/job.yaml")
    assert said.code == 2
    assert said.err == (
        "rankwise: missing/job.yaml: it cannot be written: No such file or directory\n"
    )


def test_a_wrong_type_is_refused_with_the_nearest(rankwise: Rankwise) -> None:
    said = rankwise("init", "MpiJbo")
    assert said.code == 2
    assert "MpiJob" in said.err


def test_all_documents_are_checked_and_all_mistakes_told(rankwise: Rankwise) -> None:
    rankwise("init", "MpiJob", "good.yaml")
    Path("src").mkdir()
    Path("bad.yaml").write_text("type: MpiJob\nlauncer: 1\ncompute: {instance_cout: 2}\n")
    said = rankwise("validate", "bad.yaml", "missing.yaml", "good.yaml")
    assert said.code == 2
    assert said.out.splitlines()[-1] == "good.yaml: ok"
    assert "bad.yaml:2:1" in said.err
    assert "instance_count" in said.err
    assert "missing.yaml" in said.err
    assert "Traceback" not in said.err


def test_the_schema_is_json(rankwise: Rankwise) -> None:
    said = rankwise("schema")
    assert said.code == 0
    assert "$defs" in json.loads(said.out)
