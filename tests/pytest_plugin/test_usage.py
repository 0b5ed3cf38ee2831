"""Whether a suite uses rankwise."""

from __future__ import annotations

import pytest

from rankwise.pytest_plugin.worker_session import OPTIONS, has_option, is_used


def test_every_option_of_the_plugin_is_known(pytestconfig: pytest.Config) -> None:
    group = pytestconfig._parser.getgroup("rankwise")
    assert {option.dest for option in group.options} <= set(OPTIONS)


def test_options_and_settings_count_whatever_they_are_set_to(pytester: pytest.Pytester) -> None:
    assert not has_option(pytester.parseconfig())
    for option in ("--scheduler=static", "--test-timeout=0", "--world", "--rank-output=failed"):
        assert has_option(pytester.parseconfig(option)), option
    assert not has_option(pytester.parseconfig("-x", "--rank-output=all"))
    pytester.makeini("[pytest]\nrank_grace = 3")
    assert has_option(pytester.parseconfig())


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("def test_it(tmp_path): pass", False),
        ("def test_it(comm): pass", True),
        ("import pytest\n@pytest.mark.mpi\ndef test_it(): pass", True),
        ("import pytest\n@pytest.fixture\ndef comm(): pass\ndef test_it(comm): pass", False),
        ("import pytest\n@pytest.fixture\ndef mine(comm): pass\ndef test_it(mine): pass", True),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass", False),
    ],
)
def test_marks_and_fixtures_of_ours_count(
    pytester: pytest.Pytester, source: str, used: bool
) -> None:
    pytester.makepyfile(source)
    items, _ = pytester.inline_genitems("-p", "no:randomly")
    assert len(items) == 1
    assert is_used(items[0].config) == used


def test_marks_that_pytest_mpi_is_asked_to_act_on_are_not_ours(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--with-mpi", action="store_true")
        """
    )
    pytester.makepyfile("import pytest\n@pytest.mark.mpi(min_size=2)\ndef test_it(): pass")
    for option, used in (("--with-mpi", False), ("-v", True)):
        items, _ = pytester.inline_genitems("-p", "no:randomly", option)
        assert is_used(items[0].config) == used, option
