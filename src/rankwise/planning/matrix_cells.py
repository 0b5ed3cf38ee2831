"""Which tests run in which cells of a matrix, by conditions and features."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankwise.documents.load import Document
from rankwise.documents.matrix import COMPARISON, FEATURE, Matrix, MatrixTest
from rankwise.documents.values import fit_name
from rankwise.documents.written import Faults
from rankwise.errors import InputError
from rankwise.plan import LOOK, Resources
from rankwise.planning.planner import free_name
from rankwise.planning.selection import OPERATORS, fits, fits_any
from rankwise.planning.suites import files_that_fit
from rankwise.wording import code, nearest

_GB = 1e9
_GPU = "gpu"
# Words that this machine is searched for; others mean what people want them to mean.
_LOOKED_FOR = re.compile(
    r"gpu|linux|darwin|x86_64|aarch64|arm64|ppc64le|riscv64"
    r"|s?sse\w*|avx\w*|amx\w*|fma|f16c|bmi[12]|popcnt|neon|asimd\w*|s[vm]e\w*"
)
# The same as plain words, to recognize spelling mistakes. New processors bring new extensions:
# those are recognized by their beginning.
_NAMES = (
    *("gpu", "linux", "darwin", "x86_64", "aarch64", "arm64", "ppc64le", "riscv64"),
    *("sse", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2", "sse4a", "avx", "avx2", "avx512"),
    *("fma", "f16c", "bmi1", "bmi2", "popcnt", "neon", "asimd", "sve", "sve2", "sme", "sme2"),
)
_EXTENSION = re.compile(
    r"(avx512|avx_|avx10|amx_|asimd|sve_?|sve2_?|sme_?|sme2_?)[a-z]\w*|avx10_\d"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a machine has, as far as it is known before anything runs there."""

    words: frozenset[str] = frozenset()
    amounts: Mapping[str, float] = field(default_factory=dict)
    """Of `mem` (in GB), `cores` and `gpus`, as far as they are known."""
    missing: str = ""
    """Why nothing can run there at all; empty: it can."""

    def lacks(self, need: str, *, who: str = "it") -> str:
        """Return why a need is not met on the machine `who`; empty if it is."""
        comparison = COMPARISON.fullmatch(need)
        if comparison is not None:
            name, number = comparison["name"], float(comparison["number"])
            has = self.amounts.get(name)
            if has is None:
                return f"needs {need}, which is unknown for {who}"
            if OPERATORS[comparison["sign"]](has, number):
                return ""
            return f"needs {need}, and {who} has {round(has, 1):g}"
        found = FEATURE.fullmatch(need)
        assert found is not None, need
        has_word = found["word"] in self.words
        if found["minus"]:
            return f"must not have {found['word']}, which {who} has" if has_word else ""
        return "" if has_word else f"needs {need}, which {who} does not have"


def found_here(resources: Resources, *, root: Path = Path("/")) -> Features:
    """Return what this machine has; `resources` is its size."""
    words = {platform.system().lower(), platform.machine().lower(), *_processor(root)}
    # /proc/cpuinfo has avx512f, avx512bw and so on, but no plain avx512.
    if any(word.startswith("avx512") for word in words):
        words.add("avx512")
    if resources.gpus:
        words.add(_GPU)
    return Features(words=frozenset(words), amounts=_amounts(resources))


def stated(features: Iterable[str], resources: Resources | None = None) -> Features:
    """Return what a machine has that cannot be looked at, as people say."""
    words, amounts = set(), _amounts(resources or Resources())
    for feature in features:
        comparison = COMPARISON.fullmatch(feature)
        if comparison is not None:
            amounts[comparison["name"]] = float(comparison["number"])
        else:
            words.add(feature)
    if amounts.get("gpus"):
        words.add(_GPU)
    return Features(words=frozenset(words), amounts=amounts)


def check_here(said: Sequence[str], here: Features) -> Features:
    """Return what this machine has: what was found, and what people say beside that.

    Something that people say, and that was looked for and not found, is what is missing.
    """
    missing = next((one for one in said if _can_be_looked_for(one) and here.lacks(one)), "")
    told = stated(said)
    return Features(
        words=here.words | {word for word in told.words if not word.startswith("-")},
        # What was found wins: tests get that, whatever the document promises.
        amounts={**told.amounts, **here.amounts},
        missing=f"{missing} was not found on this machine" if missing else "",
    )


def unknown_word(need: str, declared: Iterable[str]) -> tuple[str, str]:
    """Return the word of a need that no machine has or excludes, and the nearest known word.

    Both are empty if the word is known: machines are searched for it, or declare that they have it,
    or with `-` that they do not. A need with an unknown word would never be met.
    """
    found = FEATURE.fullmatch(need)
    if found is None:
        return "", ""
    word = found["word"]
    known = {*_NAMES, *(one.removeprefix("-") for one in declared)}
    if word in known or _EXTENSION.fullmatch(word):
        return "", ""
    return word, nearest(word, known) or ""


def _can_be_looked_for(feature: str) -> bool:
    return bool(COMPARISON.fullmatch(feature) or _LOOKED_FOR.fullmatch(feature.lstrip("-")))


def _amounts(resources: Resources) -> dict[str, float]:
    known = {
        "mem": resources.memory / _GB,
        "cores": float(resources.cores),
        "gpus": float(resources.gpus),
    }
    # 0 GPUs is an answer, but 0 bytes or cores mean that the size is unknown.
    return {name: value for name, value in known.items() if value or name == "gpus"}


def _processor(root: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            # `flags` on x86, `Features` on ARM.
            if name.strip().lower() in ("flags", "features"):
                return set(value.split())
    return set()


Kind = Literal["script", "notebook", "suite"]
NOTEBOOK = ".ipynb"
# Runtime and machine stand before it, and all together are the name of a folder.
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTest:
    """One test that some cells have."""

    name: str
    kind: Kind
    entry: MatrixTest
    """The entry of the document; for a file that a pattern found, with that file."""
    document: Document
    """The document; its contents are the part that has the test under `tests`."""
    index: int
    runtime: str = ""
    """The runtime that has the test; empty: those that the entry names, or all."""
    file: str = ""
    """The notebook or the suite, as the document writes it."""
    place: str = ""

    def is_for(self, runtime: str, machine: str) -> bool:
        """Return whether a cell has the test."""
        if self.runtime not in ("", runtime):
            return False
        return fits_any(runtime, self.entry.runtimes) and fits_any(machine, self.entry.machines)


def tests_in(document: Document, model: Matrix, folder: Path) -> list[PlannedTest]:
    """Return all tests, with names that are unique in each cell.

    Raises InputError with a line for every mistake.
    """
    faults = Faults()
    found: list[PlannedTest] = []
    runtimes = document.contents["runtimes"]
    places: list[tuple[str, Any, Sequence[MatrixTest]]] = [("", document.contents, model.tests)]
    places += [(name, runtimes[name], one.tests) for name, one in model.runtimes.items()]
    for runtime, section, entries in places:
        own = dataclasses.replace(document, contents=section)
        for index, entry in enumerate(entries):
            with faults.collected():
                found += _expanded(own, index, runtime, folder, entry)
    faults.raise_all()
    return list(_named(found))


def _expanded(
    document: Document, index: int, runtime: str, folder: Path, entry: MatrixTest
) -> Iterator[PlannedTest]:
    def place(*path: str) -> str:
        return document.at("tests", index, *path)

    def test(name: str, kind: Kind, *, file: str = "", one: MatrixTest = entry) -> PlannedTest:
        return PlannedTest(
            name=entry.name or fit_name(name[:_LONGEST_NAME]),
            kind=kind,
            entry=one,
            document=document,
            index=index,
            runtime=runtime,
            file=file,
            place=place(),
        )

    if entry.files:
        for path in files_that_fit(folder, entry.files, place("files")):
            script = str(path.relative_to(folder))
            if path.suffix == NOTEBOOK:
                yield test(script, kind="notebook", file=script)
            else:
                # The entry for a single file: the planner of suites finds it again by its pattern.
                one = entry.model_copy(update={"files": glob.escape(script)})
                yield test(script, kind="script", one=one)
    elif entry.suite:
        path = document.path.absolute().parent / entry.suite
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
        where = f": did you mean {code(meant)}?" if meant else f" in {path.parent}"
        raise InputError(f"{place}: there is no file {written}{where}")


def _named(tests: Sequence[PlannedTest]) -> Iterator[PlannedTest]:
    """Return the tests with names that no other test in the same cell can have."""
    taken: dict[str, set[str]] = {"": {LOOK}}
    for test in tests:
        taken.setdefault(test.runtime, set())
    # Names in the document are kept: made names make way for them.
    said = {(one.runtime, one.name) for one in tests if one.entry.name and not one.entry.files}
    for test in tests:
        mine = bool(test.entry.name) and not test.entry.files
        others = taken[""] | taken[test.runtime]
        if not mine:
            others |= {name for owner, name in said if owner in ("", test.runtime)}
        name = free_name(test.name, others)
        taken[test.runtime].add(name)
        yield dataclasses.replace(test, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEntry:
    """One test in one cell."""

    runtime: str
    machine: str
    test: PlannedTest
    skip: str = ""
    """Why the test does not run; empty: it does."""
    is_intended: bool = False
    """Whether the document has the reason for that; else something is missing."""
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_soft: bool = False


def entries_of(
    model: Matrix, tests: Sequence[PlannedTest], machines: Mapping[str, Features]
) -> Iterator[CellEntry]:
    """Yield the tests of every cell, cell by cell; those that do not run with the reason."""
    added = {(one.runtime, one.machine): one.tests for one in model.add}
    for runtime in model.runtimes:
        for machine in model.machines:
            only = added.get((runtime, machine))
            for test in tests:
                is_added = only is not None and fits_any(test.name, only)
                names = {"runtime": runtime, "machine": machine, "test": test.name}
                if test.is_for(runtime, machine):
                    yield _entry(model, names, test, machines[machine], is_added)


def cells_that_are_there(model: Matrix) -> Iterator[tuple[str, str]]:
    """Yield the cells that a matrix has without `add`."""
    for runtime, one in model.runtimes.items():
        for machine in model.machines:
            names = {"runtime": runtime, "machine": machine}
            # An exclusion with a `test` leaves out some tests, not the cell.
            is_out = any(
                set(exclusion.when) <= names.keys() and fits(exclusion.when, names)
                for exclusion in model.exclude
            )
            if fits_any(machine, one.machines) and not is_out:
                yield runtime, machine


def _entry(
    model: Matrix, names: Mapping[str, str], test: PlannedTest, has: Features, is_added: bool
) -> CellEntry:
    skip = _skip(model, names, test, has, is_added)
    settings = [one for one in model.set if fits(one.when, names)]
    softness = [one.soft_fail for one in settings if one.soft_fail is not None]
    of_runtime, of_machine = model.runtimes[names["runtime"]], model.machines[names["machine"]]
    soft_by_itself = of_runtime.soft_fail or of_machine.soft_fail or test.entry.soft_fail
    environment = {
        **model.environment_variables,
        **of_runtime.environment_variables,
        **of_machine.environment_variables,
        **test.entry.environment_variables,
    }
    for setting in settings:
        environment |= setting.environment_variables
    return CellEntry(
        runtime=names["runtime"],
        machine=names["machine"],
        test=test,
        skip=skip or has.missing,
        is_intended=bool(skip),
        # The last setting that fits wins.
        timeout=next((one.timeout for one in reversed(settings) if one.timeout is not None), None),
        environment=environment,
        is_soft=softness[-1] if softness else soft_by_itself,
    )


def _skip(
    model: Matrix, names: Mapping[str, str], test: PlannedTest, has: Features, is_added: bool
) -> str:
    """Return why a test does not run according to the document; empty: it does."""
    runtime, machine = model.runtimes[names["runtime"]], model.machines[names["machine"]]
    # A cell of `add` is there whatever leaves it out, but not against `skip` or needs.
    if not is_added:
        if not fits_any(names["machine"], runtime.machines):
            return f"{names['runtime']} is for other machines: {', '.join(runtime.machines)}"
        for exclusion in model.exclude:
            if fits(exclusion.when, names):
                return exclusion.reason
    reasons = [runtime.skip, machine.skip, test.entry.skip]
    reasons += [one.skip for one in model.set if fits(one.when, names)]
    needs = (*runtime.needs, *test.entry.needs)
    reasons += [has.lacks(need, who=names["machine"]) for need in needs]
    return next(filter(None, reasons), "")
