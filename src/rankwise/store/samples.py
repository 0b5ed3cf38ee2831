"""What was measured: series, each with its samples over all runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rankwise.store.database import Changes, Database, Table, where_all

Better = Literal["lower", "higher", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value that was measured, before it is stored."""

    metric: str
    value: float
    unit: str
    better: Better = ""
    """Empty: it is not known which direction is the good one."""
    point: Mapping[str, float | int | str] = field(default_factory=dict)
    """Where on its axes it was taken: the size of a message."""
    raw: Sequence[float] = ()
    """What the value was made of, if of more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """What can be compared with each other: one metric of one case at one point."""

    id: int
    name: str
    """Of the documents whose runs it comes from."""
    metric: str
    unit: str
    better: Better
    case: str
    """The parameters of the case, but for the trial: `ranks=2 size=1M`."""
    point: Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One sample that is stored."""

    series: int
    run: str
    created: float
    """When the run was."""
    tags: Mapping[str, str]
    """Those of the run; `git.commit` and `git.branch` are among them if it was in a repository."""
    task: str
    attempt: int
    trial: int
    value: float
    raw: tuple[float, ...]


_SERIES = Table(
    "series",
    SeriesRow,
    select="SELECT id, name, metric, unit, better, case_name, point FROM series",
    point=json.loads,
)
_SAMPLES = Table(
    "samples",
    SampleRow,
    select="""
    SELECT samples.series, runs.id, runs.created, runs.tags, samples.task,
           samples.attempt, samples.trial, samples.value, samples.raw
    FROM samples JOIN runs ON runs.serial = samples.run_serial
    """,
    # Many samples are of one run.
    tags=lru_cache(json.loads),
    raw=lambda text: tuple(json.loads(text)) if text else (),
)


_OF_RUN = "run_serial = (SELECT serial FROM runs WHERE id = ?)"


class SampleWrites(Changes):
    """Adds to what was measured."""

    def add_samples(
        self,
        run: str,
        task: str,
        attempt: int,
        samples: Iterable[Sample],
        *,
        case: str = "",
        trial: int = 0,
        conditions: Mapping[str, object] | None = None,
    ) -> None:
        """Keep what an attempt has measured, in place of what it may have before."""
        with self._database.together():
            query = "SELECT serial, name FROM runs WHERE id = ?"
            [(serial, name)] = self._database.rows(query, (run,))
            # A restart is another attempt: what the first one measured stays.
            key = (serial, task, attempt)
            where = "WHERE run_serial = ? AND task = ? AND attempt = ?"
            # A client that judges an attempt again must not double its samples.
            self._database.change(f"DELETE FROM samples {where}", key)
            self._database.change(f"DELETE FROM conditions {where}", key)
            for sample in samples:
                series = self._series_of(name, case, sample)
                # Most samples are a single value, and have no list of raw ones beside it.
                raw = json.dumps(list(sample.raw)) if sample.raw else None
                row = (series, *key, trial, sample.value, raw)
                self._database.change("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if conditions is not None:
                body = json.dumps(self.redact_in(conditions))
                self._database.change("INSERT INTO conditions VALUES (?, ?, ?, ?)", (*key, body))

    def _series_of(self, name: str, case: str, sample: Sample) -> int:
        # Sorted, because the text is the identity of the point: one order, one series.
        point = json.dumps(self.redact_in(dict(sample.point)), sort_keys=True)
        metric, unit = self.redact_name(sample.metric), self.redact_name(sample.unit)
        known = (name, metric, unit, case, point)
        self._database.change(
            "INSERT INTO series (name, metric, unit, case_name, point, better) "
            "VALUES (?, ?, ?, ?, ?, ?) "
            # What the document says now counts, also for what was measured before.
            "ON CONFLICT DO UPDATE SET better = excluded.better WHERE better != excluded.better",
            (*known, sample.better),
        )
        return self._database.number(
            "SELECT id FROM series WHERE name = ? AND metric = ? AND unit = ? AND case_name = ? "
            "AND point = ?",
            known,
        )


class SampleQueries:
    """Reads what was measured."""

    _database: Database

    def series(self, *, metric: str | None = None, name: str | None = None) -> list[SeriesRow]:
        """Return the series there are, in a stable order."""
        asked = {"metric": metric, "name": name}
        given = {column: value for column, value in asked.items() if value is not None}
        rest = f"WHERE {where_all(given)} ORDER BY id"
        return self._database.all(_SERIES, rest, tuple(given.values()))

    def history(self, series: int, *, last_runs: int | None = None) -> list[SampleRow]:
        """Return the samples of a series, those of the oldest run first; only of the last runs."""
        newest = "SELECT DISTINCT run_serial FROM samples WHERE series = ? ORDER BY 1 DESC LIMIT ?"
        # To SQLite, a negative limit is none.
        limit = -1 if last_runs is None else last_runs
        where = f"WHERE samples.series = ? AND samples.run_serial IN ({newest})"
        return self._samples(where, (series, series, limit))

    def samples_of_run(self, run: str) -> list[SampleRow]:
        """Return all samples of a run."""
        return self._samples(f"WHERE samples.{_OF_RUN}", (run,))

    def has_samples(self, run: str) -> bool:
        """Return whether a run has measured anything."""
        return bool(self._database.row(f"SELECT 1 FROM samples WHERE {_OF_RUN} LIMIT 1", (run,)))

    def conditions(self, run: str) -> dict[tuple[str, int], dict[str, object]]:
        """Return the conditions of what attempts of a run have measured, by task and number."""
        select = f"SELECT task, attempt, body FROM conditions WHERE {_OF_RUN}"
        rows = self._database.rows(select, (run,))
        return {(task, attempt): json.loads(body) for task, attempt, body in rows}

    def _samples(self, where: str, values: Sequence[object]) -> list[SampleRow]:
        order = "ORDER BY samples.run_serial, samples.trial, samples.rowid"
        return self._database.all(_SAMPLES, f"{where} {order}", values)
