"""What differs between two places, said in the order in which it matters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rankwise.reports.environments import (
    Environment,
    difference,
    environment_of,
    ranked,
    read_environment,
)
from tests.reports.matrix_runs import environment

BASE = environment_of(environment("old", "laptop"))


def said(here: Environment, there: Environment) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.name, one.here, one.there) for one in difference(here, there)]


def test_nothing_differs_between_a_place_and_itself() -> None:
    assert difference(BASE, BASE) == ()
    assert difference(BASE, replace(BASE, host="another")) == ()


def test_python_comes_first_then_packages_that_are_far_apart_then_those_of_one_side() -> None:
    here = replace(
        BASE,
        python="CPython 3.12.1",
        packages={"numpy": "1.26.4", "six": "1.17.0", "pandas": "2.3.0", "new": "1"},
    )
    there = replace(
        BASE, packages={"numpy": "1.26.5", "six": "1.16.0", "pandas": "1.5.3", "old": "2"}
    )
    assert said(here, there) == [
        ("Python", "", "CPython 3.12.1", "CPython 3.9.18"),
        ("package", "pandas", "2.3.0", "1.5.3"),
        ("package", "six", "1.17.0", "1.16.0"),
        ("package", "numpy", "1.26.4", "1.26.5"),
        ("package", "new", "1", ""),
        ("package", "old", "", "2"),
    ]


def test_processors_are_told_apart_by_what_they_can_do() -> None:
    there = replace(BASE, flags=frozenset({"avx", "avx512f", "amx_tile"}), cores=16)
    assert said(BASE, there) == [
        ("CPU features", "amx_tile avx512f", "no", "yes"),
        ("CPU features", "avx2 fma", "yes", "no"),
        ("cores", "", "2", "16"),
    ]


def test_gpus_and_their_driver() -> None:
    two = replace(BASE, gpus=("A100", "A100"), driver="570", cuda="12.8")
    assert said(BASE, two) == [("GPU", "", "none", "2 of A100")]
    older = replace(two, driver="535", cuda="12.2")
    assert said(older, two) == [
        ("GPU driver", "", "535", "570"),
        ("CUDA of the driver", "", "12.2", "12.8"),
    ]


def test_memory_that_is_nearly_the_same_is_the_same() -> None:
    assert said(BASE, replace(BASE, memory=BASE.memory - (1 << 28))) == []
    assert said(BASE, replace(BASE, memory=64 << 30)) == [("memory", "", "16 GiB", "64 GiB")]


def test_systems_modules_and_variables() -> None:
    there = replace(
        BASE,
        system={**BASE.system, "libc": "glibc 2.28"},
        modules=("gcc/13",),
        variables=frozenset(),
    )
    assert said(BASE, there) == [
        ("system", "libc", "glibc 2.36", "glibc 2.28"),
        ("modules", "gcc/13", "no", "yes"),
        ("variables", "OMP_NUM_THREADS", "yes", "no"),
    ]


def test_what_the_failure_speaks_of_comes_first() -> None:
    there = replace(BASE, packages={**BASE.packages, "six": "2.0", "scikit-learn": "1.5"})
    words = "ImportError: cannot import name 'x' from 'scikit_learn'"
    first, *others = ranked(difference(BASE, there), words)
    assert (first.name, first.is_named) == ("scikit-learn", True)
    assert [(one.name, one.is_named) for one in others] == [("six", False)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback: no\n",
        '{"packages": 3}',
        '{"packages": {}, "python": []}',
        '{"packages": {}, "python": {}, "memory": "much"}',
        '{"packages": {}, "python": {}, "gpus": 7}',
        '{"packages": ',
        '{"packages": ' + "[" * 100_000,
    ],
)
def test_what_cannot_be_used_is_no_environment(text: str) -> None:
    assert read_environment(text) is None


def test_the_last_line_counts_whatever_else_was_written() -> None:
    lines = [
        "a warning",
        json.dumps(environment("old", "gpu")),
        json.dumps(environment("new", "gpu")),
    ]
    found = read_environment("\n".join(lines) + "\nand more\n")
    assert found is not None
    assert (found.python, found.gpus) == ("CPython 3.12.1", ("NVIDIA A100 (40 GiB)",))
