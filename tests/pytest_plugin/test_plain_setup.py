"""Which tests need no agreement between their ranks before they begin."""

from __future__ import annotations

import pytest

SUITE = """
    import pytest
    from rankwise.pytest_plugin.setup_state import has_plain_setup

    @pytest.fixture
    def own():
        pass

    @pytest.fixture
    def number(request):
        return request.param

    @pytest.mark.parallel(1)
    def test_plain(comm, mpi_ranks, request):
        assert has_plain_setup(request.node)

    @pytest.mark.parallel([1])
    @pytest.mark.parametrize("left, right", [(1, 2)])
    def test_parameters(comm, left, right, request):
        assert has_plain_setup(request.node)

    class TestMethods:
        @pytest.mark.parallel_from_context
        def test_plain(self, request):
            assert has_plain_setup(request.node)

    def test_fixture_of_the_suite(own, request):
        assert not has_plain_setup(request.node)

    @pytest.mark.parametrize("number", [1], indirect=True)
    def test_indirect_parameter(number, request):
        assert not has_plain_setup(request.node)

    def test_fixture_that_may_fail(tmp_path, request):
        assert not has_plain_setup(request.node)

    @pytest.mark.skipif(False, reason="may differ")
    def test_condition(request):
        assert not has_plain_setup(request.node)

    class TestSetup:
        def setup_method(self):
            pass

        def test_it(self, request):
            assert not has_plain_setup(request.node)
"""


def run_alone(pytester: pytest.Pytester) -> pytest.RunResult:
    """Run with rankwise as the only plugin: what others do before a test is not the question."""
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester.runpytest_inprocess("-p", "rankwise.pytest_plugin.plugin")


def test_only_a_setup_without_anything_of_the_users_is_plain(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    run_alone(pytester).assert_outcomes(passed=8)


@pytest.mark.parametrize(
    "conftest",
    [
        "def pytest_runtest_setup(item): pass",
        "import pytest\n@pytest.fixture\ndef comm(): pass",
        "import pytest\n@pytest.fixture(autouse=True)\ndef everywhere(): pass",
    ],
    ids=["hook", "another comm", "autouse"],
)
def test_what_a_conftest_adds_is_seen(pytester: pytest.Pytester, conftest: str) -> None:
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        """
        from rankwise.pytest_plugin.setup_state import has_plain_setup

        def test_it(comm, request):
            assert not has_plain_setup(request.node)
        """
    )
    run_alone(pytester).assert_outcomes(passed=1)
