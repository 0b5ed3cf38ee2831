"""Choose some tasks of a plan: by name, by cell, failed ones, a share; conditions and patterns."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import InputError
from rankwise.plan import EARLIER, PART, REPEATED, Task, is_analysis, is_look
from rankwise.wording import hint, listed

if TYPE_CHECKING:
    from rankwise.store import Store

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


def selection(
    files: Sequence[Path],
    folder: Path,
    *,
    only: Sequence[str] | None = None,
    failed: bool = False,
    shard: str | None = None,
    repeat: int = 1,
    fail_fast: bool = False,
) -> Selection:
    """Return which tasks the options of the command line select.

    What failed before, and how long tasks took, is read from the store in `folder`. Raises
    InputError for `failed` if nothing has.
    """
    source = str(files[0].absolute())
    share = _shard_of(shard) if shard else None
    red, seconds = None, {}
    if (failed or share) and (store := _store_in(folder)) is not None:
        with store:
            red = _failed_in(store, source) if failed else None
            seconds = store.seconds_of(source) if share else {}
    if failed and red is None:
        raise InputError(f"--failed: no earlier run of {source} in {folder}")
    if failed and not red:
        raise InputError(
            "--failed: everything passed in the last run, so there is nothing to run again"
        )
    return Selection(
        only=tuple(only or ()),
        failed=red,
        shard=share,
        seconds=seconds,
        repeat=repeat,
        fail_fast=fail_fast,
    )


def _store_in(folder: Path) -> Store | None:
    from rankwise.store import Store
    from rankwise.store.store import FILE

    return Store.open(folder, read_only=True) if (folder / FILE).exists() else None


def _failed_in(store: Store, source: str) -> set[str] | None:
    """Return the tasks that were not green in the last run of a document; None: no earlier run."""
    if (run := store.last_run_of(source)) is None:
        return None
    # Of repeated tasks the key of the document is meant: this time it may not be repeated.
    return {
        row.body.tags.get(REPEATED, row.key) if row.body is not None else row.key
        for row in store.task_rows(run, bodies=True)
        if not row.state.is_green
    }


def _shard_of(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise InputError(f"--shard {text}: must be such as 2/5, the second of five")
    return number, count


# The tag of tasks that are tests; the other task of a cell has LOOK.
TEST = "test"


def cell_of(task: Task) -> tuple[str, str] | None:
    """Return the runtime and the machine of a task; None if it is not part of a matrix."""
    return (task.tags["runtime"], task.tags["machine"]) if PART in task.tags else None


def cells_to_run(tasks: Iterable[Task]) -> list[tuple[str, str]]:
    """Return the cells in which something would run, in their order."""
    cells = (cell_of(task) for task in tasks if not task.skip and not is_look(task))
    return list(dict.fromkeys(cell for cell in cells if cell is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tasks of a plan to run, and how often."""

    only: tuple[str, ...] = ()
    """Names, patterns such as `check*`, or `runtime=torch-*,machine=cpu`; none: all."""
    failed: Collection[str] | None = None
    """Keys of the tasks that were not green before; None: any."""
    shard: tuple[int, int] | None = None
    """The second of five: (2, 5)."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long tasks took before, to make shares of the same length."""
    repeat: int = 1
    fail_fast: bool = False


def select(tasks: Sequence[Task], wanted: Selection) -> tuple[list[Task], list[str]]:
    """Return the tasks that are wanted, with all that they need, and what people must know.

    Raises InputError if a name means none of them.
    """
    chosen, notices = list(tasks), []
    # First what is wanted by name, then what of it failed, then a share of that: each step takes
    # from the one before.
    if wanted.only:
        chosen = _with_needs(chosen, _named(chosen, wanted.only))
    if wanted.failed is not None:
        red = {one.key for one in chosen} & set(wanted.failed)
        if not red:
            shown = ", ".join(sorted(wanted.failed)[:10])
            raise InputError(
                f"--failed: none of the selected tasks failed in the last run; what failed was "
                f"{shown}: run the same documents, without --only"
            )
        keys = _of_their_cells(chosen, red)
        chosen = _with_needs(chosen, keys)
        notices.append(_said_of_failed(chosen, tasks, red))
    if wanted.shard is not None:
        # No share has all samples: `--only analysis` is for when their stores are one.
        chosen = [one for one in chosen if not is_analysis(one)]
        before = len(chosen)
        chosen, print_ = _share(chosen, *wanted.shard, wanted.seconds)
        number, count = wanted.shard
        notices.append(
            f"shard {number}/{count}: {len(chosen)} of {before} tasks (split {print_}, which must "
            "be the same for all shards)"
        )
    if wanted.repeat > 1:
        # After the split, so that all repetitions of a task are in one share.
        chosen = [again for one in chosen for again in _repeated(one, wanted.repeat)]
    if wanted.fail_fast:
        chosen = [dataclasses.replace(one, ends_run=True) for one in chosen]
    return chosen, notices


def _named(tasks: Sequence[Task], names: Sequence[str]) -> set[str]:
    keys = [task.key for task in tasks]
    found: set[str] = set()
    for name in names:
        if "=" in name:
            found.update(_tagged(tasks, name))
            continue
        # A name may have brackets in it, which are a pattern as well.
        fitting = [key for key in keys if key == name or fnmatchcase(key, name)]
        if not fitting:
            remedy = hint(name, keys, f"there are {listed(keys, most=10)}")
            raise InputError(f"--only {name}: no task has that name: {remedy}")
        found.update(fitting)
    return found


def _tagged(tasks: Sequence[Task], condition: str) -> set[str]:
    """Return the keys of the tasks whose tags fit, such as `runtime=torch-*,machine=cpu`."""
    wanted = dict(part.strip().partition("=")[::2] for part in condition.split(","))
    # All values of each tag, to find spelling mistakes in a condition.
    known = {name: {task.tags[name] for task in tasks if name in task.tags} for name in wanted}
    for name, pattern in wanted.items():
        if not pattern:
            raise InputError(f"--only {condition}: must be such as runtime=NAME,machine=NAME")
        if not known[name]:
            tags = sorted({tag for task in tasks for tag in task.tags})
            remedy = hint(name, tags, f"there are {', '.join(tags) or 'none'}")
            raise InputError(f"--only {condition}: no task has a {name}: {remedy}")
        if not any(fnmatchcase(value, pattern) for value in known[name]):
            others = f"there are {listed(sorted(known[name]), most=10)}"
            remedy = hint(pattern, known[name], others)
            raise InputError(f"--only {condition}: there is no {name} {pattern}: {remedy}")
    fitting = {
        task.key
        for task in tasks
        if all(fnmatchcase(task.tags.get(tag, ""), one) for tag, one in wanted.items())
    }
    if not fitting:
        raise InputError(f"--only {condition}: no task matches all conditions")
    return fitting


def _of_their_cells(tasks: Sequence[Task], keys: Collection[str]) -> set[str]:
    """Add all tests of the cells in which one failed: the green ones are there to compare with."""
    cells = {cell_of(task) for task in tasks if task.key in keys and not is_look(task)}
    whole = {task.key for task in tasks if cell_of(task) in cells - {None}}
    return set(keys) | whole


def _said_of_failed(chosen: Sequence[Task], tasks: Sequence[Task], red: Collection[str]) -> str:
    cells = {cell_of(task) for task in chosen} - {None}
    if not cells:
        return f"{len(red)} of {len(tasks)} tasks did not pass in the last run"
    every = {cell_of(task) for task in tasks} - {None}
    return f"{len(cells)} of {len(every)} cells did not pass in the last run"


def _with_needs(tasks: Sequence[Task], keys: Collection[str]) -> list[Task]:
    """Return these tasks and all that they need, in the order of the plan.

    With a test of a cell comes the task that describes the environment there.
    """
    # An analysis takes what earlier runs have measured where this one leaves it out.
    needs = {task.key: () if is_analysis(task) else task.needs for task in tasks}
    cells = {cell_of(task) for task in tasks if task.key in keys and not task.skip} - {None}
    around = {task.key for task in tasks if cell_of(task) in cells and is_look(task)}
    wanted: set[str] = set()
    waiting = [*keys, *around]
    while waiting:
        if (key := waiting.pop()) not in wanted:
            wanted.add(key)
            waiting += needs[key]
    return [
        _with_earlier(task, wanted) if is_analysis(task) else task
        for task in tasks
        if task.key in wanted or (is_analysis(task) and not wanted.isdisjoint(task.needs))
    ]


def _with_earlier(analysis: Task, wanted: Collection[str]) -> Task:
    """Return an analysis of trials of which some are not in this run: a file names those."""
    needs = tuple(key for key in analysis.needs if key in wanted)
    left_out = "\n".join(key for key in analysis.needs if key not in wanted)
    return dataclasses.replace(analysis, needs=needs, files={**analysis.files, EARLIER: left_out})


def _share(
    tasks: Sequence[Task], number: int, count: int, seconds: Mapping[str, float]
) -> tuple[list[Task], str]:
    """Return one of several shares that take about as long, and a digest of the split.

    Tasks that need each other stay together. What is skipped is in the first share, so that no
    other share has only skipped tasks while there is something to run.
    """
    # A task that never ran is taken to be as long as the average.
    known = [seconds[task.key] for task in tasks if task.key in seconds]
    usual = sum(known) / len(known) if known else 1.0
    groups = _groups(tasks)
    lengths = [sum(seconds.get(tasks[at].key, usual) for at in group) for group in groups]
    is_idle = [all(tasks[at].skip for at in group) for group in groups]
    # The longest first, each to the share with the least to do. Rounded, and with the position
    # last, so that all machines that compute a share split in the same way.
    order = sorted(range(len(groups)), key=lambda at: (is_idle[at], -round(lengths[at], 3), at))
    loads = [0.0] * count
    share_of: dict[str, int] = {}
    for at in order:
        shares = range(1 if is_idle[at] else count)
        least = min(shares, key=lambda share: (round(loads[share], 6), share))
        loads[least] += lengths[at]
        share_of |= {tasks[one].key: least for one in groups[at]}
    split = "\n".join(f"{key} {share_of[key]}" for key in sorted(share_of))
    mark = hashlib.sha256(split.encode()).hexdigest()[:6]
    return [task for task in tasks if share_of[task.key] == number - 1], mark


def _groups(tasks: Sequence[Task]) -> list[list[int]]:
    """Return the positions of tasks in groups that need each other, also by way of others."""
    group_of = {task.key: [at] for at, task in enumerate(tasks)}
    for task in tasks:
        for need in task.needs:
            # The smaller one goes into the larger one: thousands of tasks may need the same one.
            small, large = sorted((group_of[task.key], group_of.get(need, [])), key=len)
            if small is not large:
                large += small
                group_of |= {tasks[at].key: large for at in small}
    return sorted({id(group): sorted(group) for group in group_of.values()}.values())


def _repeated(task: Task, times: int) -> list[Task]:
    """Return copies of a task; each needs the copies with its own number."""
    return [
        dataclasses.replace(
            task,
            key=f"{task.key}.{number}",
            needs=tuple(f"{need}.{number}" for need in task.needs),
            inherits=tuple(f"{one}.{number}" for one in task.inherits),
            tags={**task.tags, REPEATED: task.key},
        )
        for number in range(1, times + 1)
    ]


_VERSION = re.compile(r"\d+\.\d*[1-9]0+")
_COMPARISON = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(.+?)\s*")
OPERATORS = {
    "=": operator.eq,
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def fits(condition: Mapping[str, Sequence[str]], values: Mapping[str, str]) -> bool:
    """Return whether each name of a condition has one of the wanted values."""
    return all(
        any(is_met(one, values.get(name, "")) for one in wanted)
        for name, wanted in condition.items()
    )


def fits_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of some patterns, or there are none."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def is_met(wanted: str, value: str) -> bool:
    """Return whether a value is the wanted one, fits a pattern, or meets a comparison: `> 2`."""
    comparison = _COMPARISON.fullmatch(wanted)
    if comparison is None:
        return _is_same(wanted, value) or fnmatchcase(value, wanted)
    sign, other = comparison.groups()
    if sign in ("==", "!="):
        return _is_same(other, value) is (sign == "==")
    # Only numbers can be greater or less; a name is neither.
    left, right = _number(value), _number(other)
    return left is not None and right is not None and bool(OPERATORS[sign](left, right))


def _is_same(wanted: str, value: str) -> bool:
    if wanted == value:
        return True
    # What ends in a zero after another digit is a version: 2.10 comes after 2.9, and is not 2.1.
    if _VERSION.fullmatch(wanted) or _VERSION.fullmatch(value):
        return False
    number = _number(value)
    return number is not None and number == _number(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
