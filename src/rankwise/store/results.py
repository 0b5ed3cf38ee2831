"""What became of single tests, where a task runs many of them, and of tests in earlier runs."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.store.changes import Changes
from rankwise.store.rows import ResultRow
from rankwise.store.states import State

_COLUMNS = ("run", "task", "attempt", "position", "name", "state", "seconds", "message")


class Results(Changes):
    """Writes and reads the single tests of attempts."""

    def add_results(self, run: str, task: str, attempt: int, results: Sequence[ResultRow]) -> None:
        """Store what became of an attempt's single tests, in place of what was known of them."""
        if not results:
            return
        with self.together():
            self._database.change(
                "DELETE FROM results WHERE run = ? AND task = ? AND attempt = ?",
                (run, task, attempt),
            )
            rows = [
                (run, task, attempt, position, one.name, one.state, one.seconds, one.message)
                for position, one in enumerate(results)
            ]
            self._insert("results", _COLUMNS, rows)

    def results(self, run: str) -> dict[str, list[ResultRow]]:
        """Give the single tests of each task that has any, those of its last attempt."""
        found = self._database.rows(
            "SELECT task, name, results.state, seconds, message FROM results "
            "JOIN tasks ON tasks.run = results.run AND tasks.key = results.task "
            "AND tasks.attempts = results.attempt "
            "WHERE results.run = ? ORDER BY tasks.position, results.position",
            (run,),
        )
        results: dict[str, list[ResultRow]] = {}
        for task, name, state, seconds, message in found:
            row = ResultRow(name=name, state=State(state), seconds=seconds, message=message)
            results.setdefault(task, []).append(row)
        return results

    def last_run_of(self, source: str) -> str | None:
        """Give the newest run of a document that is over, or has at least begun; None: none is."""
        found = self._database.row(
            "SELECT id FROM runs WHERE source = ? AND started IS NOT NULL "
            "ORDER BY serial DESC LIMIT 1",
            (source,),
        )
        return str(found[0]) if found else None

    def seconds_of(self, source: str, *, runs: int = 5) -> dict[str, float]:
        """Give how long the tasks of a document that passed took on average, in its last runs."""
        found = self._database.rows(
            "SELECT key, avg(tasks.ended - tasks.started) FROM tasks "
            "WHERE state = ? AND tasks.started IS NOT NULL AND run IN "
            "(SELECT id FROM runs WHERE source = ? ORDER BY serial DESC LIMIT ?) GROUP BY key",
            (State.PASSED, source, runs),
        )
        return {str(key): float(seconds) for key, seconds in found}
