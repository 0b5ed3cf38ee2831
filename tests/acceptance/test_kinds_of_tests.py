"""Tests that are not plain functions: methods of unittest, doctests, coroutines."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project


def test_unittest_doctest_and_asyncio_bodies_run_once_on_each_of_their_ranks(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "pytest.ini": """
                [pytest]
                addopts = --doctest-modules
                asyncio_default_fixture_loop_scope = function
            """,
            "log.py": '''
                import os
                from pathlib import Path


                def log(name):
                    """Note that a body has run; one short line is written whole.

                    >>> log("doctest")
                    """
                    rank = os.environ["PMI_RANK"]
                    with (Path(__file__).parent / "bodies.txt").open("a") as file:
                        file.write(f"{name} {rank}\\n")
            ''',
            "test_unittest.py": """
                import unittest

                import pytest
                from log import log


                class TestMethods(unittest.TestCase):
                    @classmethod
                    def setUpClass(cls):
                        cls.numbers = [1, 2]

                    def setUp(self):
                        self.total = sum(self.numbers)

                    @pytest.fixture(autouse=True)
                    def give_comm(self, comm):
                        self.comm = comm

                    def test_alone(self):
                        log("method alone")
                        self.assertEqual((self.total, self.comm.size), (3, 1))

                    @pytest.mark.parallel(2)
                    def test_pair(self):
                        log("method pair")
                        self.assertEqual(self.comm.allreduce(self.total), 6)

                    @pytest.mark.parallel(2)
                    def test_fails_on_rank_1(self):
                        log("method fails")
                        self.assertEqual(self.comm.rank, 0)

                    @pytest.mark.parallel(2)
                    def test_skips_itself(self):
                        self.skipTest("not today")

                    @pytest.mark.parallel(2)
                    @unittest.expectedFailure
                    def test_fails_as_expected(self):
                        log("method expected")
                        self.assertEqual(self.comm.rank, -1)


                @pytest.mark.parallel(3)
                class TestWhole(unittest.TestCase):
                    def test_trio(self):
                        log("class trio")
            """,
            "test_async.py": """
                import asyncio

                import pytest
                from log import log

                pytestmark = pytest.mark.asyncio


                @pytest.mark.parallel(2)
                async def test_pair(comm):
                    await asyncio.sleep(0)
                    log("async pair")
                    assert comm.allreduce(1) == 2


                @pytest.mark.parallel(2)
                async def test_fails_on_rank_1(comm):
                    await asyncio.sleep(0)
                    log("async fails")
                    assert comm.rank == 0


                async def test_alone():
                    await asyncio.sleep(0)
                    log("async alone")
            """,
        }
    )
    outcome = project.pytest(f"--scheduler={scheduler}", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "log.log": "passed",
        "TestMethods::test_alone": "passed",
        "TestMethods::test_pair": "passed",
        "TestMethods::test_fails_on_rank_1": "failed",
        "TestMethods::test_skips_itself": "skipped",
        "TestMethods::test_fails_as_expected": "xfailed",
        "TestWhole::test_trio": "passed",
        "test_pair": "passed",
        "test_fails_on_rank_1": "failed",
        "test_alone": "passed",
    }, str(outcome)
    ranks: dict[str, list[int]] = {}
    for line in (project.folder / "bodies.txt").read_text().splitlines():
        name, _, rank = line.rpartition(" ")
        ranks.setdefault(name, []).append(int(rank))
    assert {name: len(found) for name, found in ranks.items()} == {
        "doctest": 1,
        "method alone": 1,
        "method pair": 2,
        "method fails": 2,
        "method expected": 2,
        "class trio": 3,
        "async pair": 2,
        "async fails": 2,
        "async alone": 1,
    }
    assert all(len(set(found)) == len(found) for found in ranks.values()), ranks
