"""Every change to the store, with the event that tells of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rankwise.errors import InputError, StoreFailure
from rankwise.plan import MERGED, NOTIFIED, REPORTED, Plan, body_of
from rankwise.store.database import Changes, where_all
from rankwise.store.rows import Outcome, ProcessRow, ResultRow, State, TaskRow
from rankwise.store.schema import open_for_reading

_NOT_STARTED = "started IS NULL"
_SUBMITTING = f"state = '{State.SUBMITTING.value}'"
_TRIED = f"state IN ('{State.SUBMITTING.value}', '{State.RUNNING.value}')"


def check_end(state: State) -> None:
    """Raise ValueError for a state that is no end."""
    if not state.is_over:
        raise ValueError(f"{state.value!r} is no end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What came of merging another store into this one."""

    ids: Mapping[str, str]
    """The new runs: the id there, and the id here."""
    known: int
    """How many runs were here already."""
    waiting: Sequence[str]
    """Runs that are not over there."""
    samples: int
    """How many are new."""


_LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM main.runs WHERE name = ?"


class Writes(Changes):
    """Writes runs, tasks, attempts and their processes.

    Methods that return a bool return whether anything was changed: what is over stays as it is.
    """

    def create_run(self, plan: Plan, spec_text: str, *, now: float, parent: str = "") -> str:
        """Store a plan with all its tasks, queued, and return the id of the new run.

        `parent` is the run of which a stage submits this one.
        """
        # Before the transaction: others need not wait for it.
        tasks = [
            {"key": task.key, "position": position, "body": body_of(task)}
            for position, task in enumerate(plan.tasks)
        ]
        new: dict[str, object] = {"state": State.QUEUED, "reason": ""}
        with self.together():
            number = self._database.number(_LAST_NUMBER, (plan.name,)) + 1
            runs = self._database.path.with_name("runs")
            # A store that was here before, and was removed, may have left folders.
            while Path(runs, f"{plan.name}-{number}").exists():
                number += 1
            run = f"{plan.name}-{number}"
            row = {
                **new,
                "id": run,
                "name": plan.name,
                "number": number,
                "kind": plan.kind,
                "experiment": plan.experiment,
                "source": plan.source,
                "created": now,
                "tags": json.dumps(dict(plan.tags)),
                "notices": json.dumps(plan.notices),
                "spec_text": spec_text,
                "parent": parent,
            }
            for task in tasks:
                task |= {**new, "run": run, "attempts": 0, "digest": "", "origin": ""}
            # Events and tasks refer to the run, so it comes first.
            self._insert("runs", [row])
            self._insert("tasks", tasks)
            self.add_event(run, "run_created", {"tasks": len(tasks)}, now=now)
        return run

    def run_started(self, run: str, *, now: float) -> bool:
        """Store that an engine drives a run; one that is resumed keeps its start."""
        new = {"state": State.RUNNING, "started": now}
        return self._transition(
            "runs", {"id": run}, new, (run, "run_started", {}), now=now, only_if=_NOT_STARTED
        )

    def want_cancel(self, run: str, *, now: float) -> bool:
        """Ask the engine of a run to end it."""
        which, new = {"id": run}, {"wanted": "cancel"}
        event: tuple[str, str, dict[str, object]] = run, "cancel_wanted", {}
        return self._transition("runs", which, new, event, now=now, only_if="wanted IS NULL")

    def run_ended(
        self, run: str, state: State, *, exit_code: int, reason: str = "", now: float
    ) -> bool:
        """Store how a run ended; all its tasks must be over."""
        check_end(state)
        how = {"state": state, "exit_code": exit_code, "reason": reason}
        with self.together():
            what = f"run {run} cannot have ended ({state.value})"
            self._refuse_open("tasks", "key", {"run": run}, what)
            event = run, "run_ended", how
            return self._transition("runs", {"id": run}, {**how, "ended": now}, event, now=now)

    def task_over(
        self,
        run: str,
        key: str,
        state: State,
        *,
        reason: str = "",
        exit_code: int | None = None,
        now: float,
    ) -> bool:
        """Store what became of a task in the end; its attempts must be over."""
        check_end(state)
        how = {"state": state, "exit_code": exit_code, "reason": reason}
        with self.together():
            # A task whose attempt may still run must stay open, or nothing would look for its end.
            what = f"task {key} of run {run} cannot be over ({state.value})"
            self._refuse_open("attempts", "number", {"run": run, "task": key}, what)
            event = run, "task_over", {"task": key, **how}
            which = {"run": run, "key": key}
            return self._transition("tasks", which, {**how, "ended": now}, event, now=now)

    def note_digest(self, run: str, key: str, digest: str) -> bool:
        """Store what the outcome of a task depends on; it must not be over."""
        return self._change("tasks", {"run": run, "key": key}, {"digest": digest})

    def take_over(self, run: str, key: str, earlier: TaskRow, *, reason: str, now: float) -> bool:
        """Let a task have passed as it did in an earlier run; it must not have been tried."""
        new = {"origin": earlier.origin or earlier.run, "digest": earlier.digest}
        with self.together():
            which = {"run": run, "key": key}
            return self._change("tasks", which, new, only_if="attempts = 0") and self.task_over(
                run, key, State.PASSED, reason=reason, exit_code=0, now=now
            )

    # Attempts

    def begin_attempt(self, run: str, task: str, *, marker: str, folder: Path, now: float) -> int:
        """Announce an attempt before anything is submitted, and return its number.

        Raises StoreFailure if the task is over or has an attempt that is not: nothing runs twice.
        """
        of_task = {"run": run, "task": task}
        submitting = {"state": State.SUBMITTING}
        with self.together():
            what = f"task {task} of run {run} cannot be tried again"
            self._refuse_open("attempts", "number", of_task, what)
            # Numbers have no gaps: attempts are never deleted while their run is there.
            number = 1 + self._database.number(
                "SELECT count(*) FROM attempts WHERE run = ? AND task = ?", (run, task)
            )
            new = {**submitting, "attempts": number}
            if not self._change("tasks", {"run": run, "key": task}, new):
                raise StoreFailure(
                    f"{self._database.path}: task {task} of run {run} is over, so it cannot be "
                    "tried again. Another rankwise takes care of this run."
                )
            row = {**of_task, **submitting, "number": number, "marker": marker}
            self._insert("attempts", [{**row, "folder": str(folder), "begun": now, "reason": ""}])
            self.add_event(run, "attempt_begun", {"task": task, "attempt": number}, now=now)
        return number

    def attempt_heard(
        self,
        run: str,
        task: str,
        number: int,
        *,
        now: float,
        job_id: str = "",
        has_started: bool = False,
        waits: str = "",
        silence: str | None = None,
    ) -> bool:
        """Store what a backend says of an attempt that is not over.

        `waits` is why it does not start yet, and is gone as soon as it does. `silence` is why
        nothing is heard of it, though it may run; empty: it is heard again.
        """
        # Updates may come late and twice: each part changes only what it finds as it should be.
        which = {"run": run, "task": task, "number": number}
        of_task, body = {"run": run, "key": task}, {"task": task, "attempt": number}
        is_new = False
        with self.together():
            if job_id:
                event = run, "attempt_submitted", {**body, "job_id": job_id}
                new = {"job_id": job_id, "submitted": now}
                is_new = self._transition(
                    "attempts", which, new, event, now=now, only_if="job_id IS NULL"
                )
            if has_started:
                event, new = (run, "attempt_started", body), {"state": State.RUNNING}
                if self._transition(
                    "attempts", which, {**new, "started": now}, event, now=now, only_if=_NOT_STARTED
                ):
                    is_new = self._change("tasks", of_task, {**new, "reason": ""})
                    self._change("tasks", of_task, {"started": now}, only_if=_NOT_STARTED)
            if silence is not None:
                is_new |= self._change("tasks", of_task, {"reason": silence}, only_if=_TRIED)
            if waits:
                is_new |= self._change("tasks", of_task, {"reason": waits}, only_if=_SUBMITTING)
        return is_new

    def attempt_ended(
        self,
        run: str,
        task: str,
        number: int,
        outcome: Outcome,
        processes: Sequence[ProcessRow] = (),
        *,
        tests: Sequence[ResultRow] = (),
    ) -> bool:
        """Store how an attempt ended, with its processes and single tests.

        Whether its task is over is stored by `task_over`: it may be tried again.
        """
        check_end(outcome.state)
        which = {"run": run, "task": task, "number": number}
        how = asdict(outcome)
        started, ended = how.pop("started"), how.pop("ended")
        event = run, "attempt_ended", {"task": task, "attempt": number, **how}
        of_attempt = {"run": run, "task": task, "attempt": number}
        # Before the transaction: others need not wait for it.
        rows = [{**of_attempt, **asdict(process)} for process in processes]
        # The runner's own times belong together: the client may have noticed a start late.
        times = {"started": started} if started is not None else {}
        with self.together():
            # Not a second time: the first client that stores an end is the one that counts.
            new = {**how, **times, "ended": ended}
            if not self._transition("attempts", which, new, event, now=ended):
                return False
            if times:
                is_first = "1" if number == 1 else _NOT_STARTED
                self._change("tasks", {"run": run, "key": task}, times, only_if=is_first)
            self._insert("processes", rows)
            if tests:
                self.add_results(run, task, number, tests)
        return True

    def add_results(self, run: str, task: str, attempt: int, results: Sequence[ResultRow]) -> None:
        """Store what became of an attempt's single tests, in place of what was known of them."""
        of_attempt = {"run": run, "task": task, "attempt": attempt}
        rows = [
            {
                **of_attempt,
                "position": position,
                "name": self.redact_name(one.name),
                "state": one.state,
                "seconds": one.seconds,
                "message": self.redact(one.message),
            }
            for position, one in enumerate(results)
        ]
        with self.together():
            # A client that was killed may have stored some of them.
            of_it = f"WHERE {where_all(of_attempt)}"
            self._database.change(f"DELETE FROM results {of_it}", (run, task, attempt))
            self._insert("results", rows)

    # Another store

    def merge(self, other: Path) -> Merged:
        """Take in the runs of another store that are over and not here yet, all or none of them.

        The other store is only read, and may be in use. Raises InputError and StoreFailure.
        """
        if other.exists() and other.samefile(self._database.path):
            raise InputError(f"{other}: this is the store itself")
        # One of an older version is brought up to date by that; one of a newer version is refused.
        with closing(open_for_reading(other, patience=self._database.patience)) as opened:
            # Here, because later an error in it would look like one in this store.
            options, found = opened.options, opened.row("PRAGMA quick_check(1)")
        if found != ("ok",):
            raise StoreFailure(f"{other}: the store is damaged, nothing was merged: {found}")
        with self._database.beside(other, options), self.together():
            return self._merge(other)

    def _merge(self, other: Path) -> Merged:
        # Ids are given out by each store for itself: what is the same run is told by its creation.
        runs = self._database.rows(
            "SELECT theirs.id, theirs.state, ours.id FROM other.runs AS theirs "
            "LEFT JOIN main.runs AS ours ON ours.name = theirs.name "
            "AND ours.created = theirs.created AND ours.spec_text = theirs.spec_text "
            "ORDER BY theirs.serial"
        )
        here = {theirs: ours for theirs, _, ours in runs if ours is not None}
        known, samples, ids = len(here), 0, dict[str, str]()
        for run, state, _ in runs:
            if run not in here and State(state).is_over:
                ids[run], count = self._take_in(run, here, other)
                here[run] = ids[run]
                samples += count
        if ids:
            self._put_in_order()
        waiting = [run for run, *_ in runs if run not in here]
        return Merged(ids=ids, known=known, waiting=waiting, samples=samples)

    def _take_in(self, run: str, here: Mapping[str, str], other: Path) -> tuple[str, int]:
        """Copy a run of the other store; return its id here, and the number of its samples."""
        columns = "serial, name, number, parent, source, tags"
        [found] = self._database.rows(f"SELECT {columns} FROM other.runs WHERE id = ?", (run,))
        theirs, name, wanted, parent, source, written = found
        last = self._database.number(_LAST_NUMBER, (name,))
        taken = "SELECT 1 FROM main.runs WHERE name = ? AND number = ?"
        runs = self._database.path.with_name("runs")
        number = last + 1 if self._database.row(taken, (name, wanted)) else wanted or last + 1
        while Path(runs, f"{name}-{number}").exists():
            number = max(number, last) + 1
        run_here = f"{name}-{number}"
        tags = {MERGED: f"{run} of {other}" + f", {source}" * bool(source), **json.loads(written)}
        # What they ask for was done there.
        tags = {name: tags[name] for name in tags if name not in (REPORTED, NOTIFIED)}
        # Nothing that was made elsewhere may be taken for what a document has made here: so it has
        # no source, and its tasks have no digests.
        new = {"serial": None, "id": run_here, "number": number, "source": ""}
        new |= {"parent": here.get(parent, ""), "tags": json.dumps(tags)}
        self._copy("runs", "id", run, new)
        self._copy("tasks", "run", run, {"run": run_here, "digest": "", "origin": ""})
        for table in ("attempts", "processes", "results", "events"):
            self._copy(table, "run", run, {"run": run_here, "id": None})
        ours = self._database.number("SELECT serial FROM main.runs WHERE id = ?", (run_here,))
        self._copy("conditions", "run_serial", theirs, {"run_serial": ours})
        self._database.change(
            "INSERT INTO main.series (name, metric, unit, better, case_name, point) "
            "SELECT name, metric, unit, better, case_name, point FROM other.series "
            "WHERE id IN (SELECT series FROM other.samples WHERE run_serial = ?) ORDER BY id "
            "ON CONFLICT DO NOTHING",
            (theirs,),
        )
        copied = self._database.change(
            "INSERT INTO main.samples (series, run_serial, task, attempt, trial, value, raw) "
            "SELECT ours.id, ?, task, attempt, trial, value, raw FROM other.samples AS samples "
            "JOIN other.series AS theirs ON theirs.id = samples.series "
            "JOIN main.series AS ours USING (name, metric, unit, case_name, point) "
            "WHERE run_serial = ? ORDER BY samples.rowid",
            (ours, theirs),
        )
        return run_here, copied

    def _copy(self, table: str, column: str, value: object, new: Mapping[str, object]) -> None:
        """Copy the rows of a run from the other store, with new values in some columns."""
        columns = [row[1] for row in self._database.rows(f"PRAGMA main.table_info({table})")]
        chosen = ", ".join("?" if name in new else name for name in columns)
        select = f"SELECT {chosen} FROM other.{table} WHERE {column} = ? ORDER BY rowid"
        values = [new[name] for name in columns if name in new]
        insert = f"INSERT INTO main.{table} ({', '.join(columns)}) {select}"
        self._database.change(insert, (*values, value))

    def _put_in_order(self) -> None:
        """Number runs in the order of their creation, as histories show them."""
        moves = self._database.rows(
            "SELECT -row_number() OVER (ORDER BY created, serial), serial FROM main.runs"
        )
        self._database.change("PRAGMA defer_foreign_keys = ON")
        for table in ("runs", "samples", "conditions"):
            column = "serial" if table == "runs" else "run_serial"
            # By way of negative ones: for a moment, two runs would have the same.
            update = f"UPDATE main.{table} SET {column} ="
            moving = [move for move in moves if -move[0] != move[1]]
            self._database.change_many(f"{update} ? WHERE {column} = ?", moving)
            self._database.change(f"{update} -{column} WHERE {column} < 0")
