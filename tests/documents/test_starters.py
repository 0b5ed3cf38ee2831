"""Documents to start from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwise.documents.load import TYPES, load, starter
from rankwise.errors import InputError
from rankwise.wording import alternatives


@pytest.mark.parametrize("name", TYPES)
def test_a_starter_is_a_document_of_its_type(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(starter(name))
    model = load(path).model
    assert model.type == name
    assert model.name.startswith("my-")


@pytest.mark.parametrize("name", TYPES)
def test_what_a_starter_leaves_out_can_be_put_in(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(re.sub(r"(?m)^( *)# ( *[a-z_]+:( .*)?)$", r"\1\2", starter(name)))
    assert path.read_text() != starter(name)
    assert load(path).model.type == name


@pytest.mark.parametrize("name", TYPES)
def test_a_starter_is_commented_and_fits_the_screen(name: str) -> None:
    lines = starter(name).splitlines()
    assert sum(line.lstrip().startswith("#") for line in lines) > 10
    assert max(map(len, lines)) <= 100


def test_an_unknown_type_has_no_starter() -> None:
    with pytest.raises(InputError) as caught:
        starter("mpijob")
    valid = alternatives([f"`{name}`" for name in TYPES])
    assert str(caught.value) == f"the type must be {valid}, not 'mpijob'; did you mean `MpiJob`?"
