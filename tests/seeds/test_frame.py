"""The table of sentences itself."""

from __future__ import annotations

from pathlib import Path

import pytest

_CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.seeds import sentences

pytest_configure = sentences.configure
def pytest_collection_modifyitems(items): sentences.note(items)
def pytest_terminal_summary(terminalreporter): sentences.show(terminalreporter)
"""
_SUITE = """
import pytest
from tests.seeds.sentences import sentence

@sentence("A document", ran="pytest -x")
def test_good():
    '''It works as it
    is written.'''

@sentence("A document", ran="pytest", stand_in="a script")
def test_bad():
    '''It works with a GPU.

    More about it.
    '''
    assert False

@pytest.fixture
def broken():
    raise ValueError

@sentence("A document", ran="pytest -y", said="It can be said in two ways.")
@sentence("B document", ran="pytest --lf")
def test_error(broken):
    '''It | has a setup.'''

@sentence("B document", ran="nothing")
def test_skip():
    '''It is elsewhere.'''
    pytest.skip("not here")

def test_other(): pass
"""


def test_each_sentence_is_a_row_with_its_verdict(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    lines = [line for line in result.outlines if line.startswith("| ")]
    assert lines[2:] == [
        "| A document | It can be said in two ways. | pytest -y | error |",
        "| A document | It works as it is written. | pytest -x | passed |",
        "| A document | It works with a GPU. | pytest (a script stands in) | failed |",
        "| B document | It is elsewhere. | nothing | skipped |",
        "| B document | It \\| has a setup. | pytest --lf | error |",
    ]


def test_a_sentence_without_words_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(
        "from tests.seeds.sentences import sentence\n"
        "@sentence('D', ran='x')\n"
        "def test_silent(): pass\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_silent: its docstring must be the sentence*"])
