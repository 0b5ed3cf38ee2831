"""Documents for the tests of the spec reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwise.documents.jobs import DocumentModel
from rankwise.documents.load import parse
from rankwise.documents.written import Scalar
from rankwise.documents.yaml_reader import read_text
from rankwise.errors import InputError

SEEDS = sorted((Path(__file__).parent / "seed").glob("*.yaml"))


def plain(contents: Any) -> Any:
    """Leave out how values were written."""
    match contents:
        case dict():
            return {key: plain(value) for key, value in contents.items()}
        case list():
            return [plain(value) for value in contents]
        case Scalar():
            return contents.value
    return contents


def yaml_of(contents: Any) -> str:
    """Write contents as YAML; JSON is YAML, but for its own names of what is no number."""
    return json.dumps(plain(contents), indent=1)


def parsed(text: str) -> DocumentModel:
    """Read and check a text as `job.yaml`."""
    return parse(read_text(text, "job.yaml"))


def complaints_about(text: str) -> list[str]:
    """Return the lines that say what is wrong with a text, without the name of the file."""
    with pytest.raises(InputError) as caught:
        parsed(text)
    return [line.removeprefix("job.yaml:") for line in str(caught.value).split("\n")]
