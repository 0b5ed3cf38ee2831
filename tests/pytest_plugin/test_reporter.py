"""What the reporter makes of a run in which something was lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.pytest_plugin.reporter import Reporter


@pytest.fixture
def session() -> Any:
    """What a reporter needs of a session."""
    config = SimpleNamespace(
        getoption=lambda _name, default=None: default,
        get_verbosity=lambda: 0,
        pluginmanager=SimpleNamespace(get_plugin=lambda _name: None),
        stash=pytest.Stash(),
    )
    return SimpleNamespace(
        config=config,
        shouldfail=False,
        shouldstop=False,
        Failed=pytest.Session.Failed,
        Interrupted=pytest.Session.Interrupted,
    )


def make_reporter(session: Any, *names: str) -> Reporter:
    hooks = ("logstart", "logreport", "logfinish")
    ihook = SimpleNamespace(**{f"pytest_runtest_{name}": lambda **_: None for name in hooks})
    tests: Any = [SimpleNamespace(nodeid=name, location=("", 0, ""), ihook=ihook) for name in names]
    return Reporter(session, lambda _header: None, tests, size=2, rank=None, policy="sequential")


def test_a_test_without_a_verdict_fails_the_run_by_name(session: Any) -> None:
    reporter = make_reporter(session, "test_a", "test_b", "test_c")
    reporter.log_ended(0, [], how="crashed", slots=[0])
    words = "2 collected tests have no verdict; please report this: test_b, test_c"
    with pytest.raises(pytest.Session.Failed, match=words):
        reporter.conclude()


def test_a_run_in_which_every_test_has_a_verdict_is_left_alone(session: Any) -> None:
    reporter = make_reporter(session, "test_a")
    reporter.log_ended(0, [], how="crashed", slots=[0])
    reporter.conclude()
    assert session.shouldfail is False


def test_tests_that_a_stop_has_kept_from_running_have_a_reason(session: Any) -> None:
    reporter = make_reporter(session, "test_a")
    reporter.take({"kind": "stopped", "fail": "", "stop": "enough"}, b"")
    with pytest.raises(pytest.Session.Interrupted, match="enough"):
        reporter.conclude()
    assert (session.shouldfail, session.shouldstop) == (False, "enough")
