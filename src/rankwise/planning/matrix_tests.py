"""The tests of a matrix, each by itself: patterns become the files that they find."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from rankwise.errors import InputError
from rankwise.planning.patterns import files_that_fit
from rankwise.spec.documents import Document
from rankwise.spec.matrix import ENVIRONMENT, Matrix
from rankwise.spec.matrix_tests import MatrixTest
from rankwise.spec.mistakes import nearest
from rankwise.spec.values import fit_name
from rankwise.spec.written import Found, Section

NOTEBOOK = ".ipynb"
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTest:
    """One test that some cells have."""

    name: str
    kind: Literal["script", "notebook", "suite"]
    entry: MatrixTest
    """As it is planned: a pattern finds one file."""
    section: Section
    """The part of the document that has it under `tests`."""
    index: int
    runtime: str = ""
    """The runtime that it belongs to; empty: those that it names, or all."""
    file: str = ""
    """The notebook or the suite, as the document writes it."""
    place: str = ""

    def is_for(self, runtime: str, machine: str) -> bool:
        """Tell whether a cell has it."""
        if self.runtime and self.runtime != runtime:
            return False
        return _fits(runtime, self.entry.runtimes) and _fits(machine, self.entry.machines)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def tests_in(document: Document, model: Matrix, folder: Path) -> list[CellTest]:
    """Find all tests, with names that differ wherever a cell has both.

    Raises InputError with every mistake.
    """
    faults: list[str] = []
    found: list[CellTest] = []
    runtimes = document.contents["runtimes"]
    places: list[tuple[str, Any, Sequence[MatrixTest]]] = [("", document.contents, model.tests)]
    places += [(name, runtimes[name], one.tests) for name, one in model.runtimes.items()]
    for runtime, section, entries in places:
        for index, entry in enumerate(entries):
            try:
                at = _Place(document=document, section=section, index=index, runtime=runtime)
                found += _expanded(at, folder, entry)
            except InputError as error:
                faults.append(str(error))
    if faults:
        raise InputError("\n".join(faults))
    return list(_named(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the document has a test."""

    document: Document
    section: Section
    index: int
    runtime: str

    def __call__(self, *path: str) -> str:
        at = Found(self.section, ("tests", self.index, *path)).value_at
        return f"{self.document.path}:{at.line}:{at.column}"


def _expanded(place: _Place, folder: Path, entry: MatrixTest) -> Iterator[CellTest]:
    def test(name: str, **details: Any) -> CellTest:
        common = {
            "name": entry.name or fit_name(name[:_LONGEST_NAME]),
            "entry": entry,
            "section": place.section,
            "index": place.index,
            "runtime": place.runtime,
            "place": place(),
        }
        return CellTest(**{**common, **details})

    if entry.files:
        for path in files_that_fit(folder, entry.files, place("files")):
            script = str(path.relative_to(folder))
            if path.suffix == NOTEBOOK:
                yield test(script, kind="notebook", file=script)
            else:
                one = entry.model_copy(update={"files": glob.escape(script)})
                yield test(script, kind="script", entry=one)
    elif entry.suite:
        path = place.document.path.absolute().parent / entry.suite
        _check_file(path, entry.suite, place("suite"), "*.y*ml")
        yield test(path.name, kind="suite", file=str(path))
    elif entry.run.strip().endswith(NOTEBOOK):
        path = folder / entry.run.strip()
        _check_file(path, entry.run.strip(), place("run"), f"*{NOTEBOOK}")
        yield test(path.name, kind="notebook", file=entry.run.strip())
    elif entry.pytest:
        first = entry.pytest.split()[0]
        yield test("pytest" if first.startswith("-") else f"pytest-{first}", kind="script")
    else:
        first = entry.run.split()[0]
        is_script = Path(first).suffix in (".py", ".sh")
        yield test(Path(first).name if is_script else entry.run, kind="script")


def _check_file(path: Path, written: str, place: str, others: str) -> None:
    if not path.is_file():
        meant = nearest(path.name, [one.name for one in path.parent.glob(others)])
        hint = f": did you mean {meant}?" if meant else f" in {path.parent}"
        raise InputError(f"{place}: there is no file {written}{hint}")


def _named(tests: Sequence[CellTest]) -> Iterator[CellTest]:
    """Give each test a name that no other has which could be in the same cell."""
    taken: dict[str, set[str]] = {"": {ENVIRONMENT}}
    for test in tests:
        taken.setdefault(test.runtime, set())
    said = {(one.runtime, one.name) for one in tests if one.entry.name and not one.entry.files}
    for test in tests:
        mine = bool(test.entry.name) and not test.entry.files
        others = taken[""] | taken[test.runtime]
        reserved = {name for owner, name in said if owner in ("", test.runtime)}
        name, number = test.name, 1
        while name in others or (not mine and name in reserved):
            number += 1
            name = f"{test.name}-{number}"
        taken[test.runtime].add(name)
        yield dataclasses.replace(test, name=name)
