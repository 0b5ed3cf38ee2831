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
from rankwise.plan import PART, REPEATED, Task, is_look
from rankwise.wording import hint, listed

if TYPE_CHECKING:
    from rankwise.store import Store

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """What was given."""

    only: Sequence[str] | None = None
    failed: bool = False
    fail_fast: bool = False
    repeat: int = 1
    shard: str | None = None


def selection(options: SelectionOptions, files: Sequence[Path], folder: Path) -> Selection:
    """Say which tasks are wanted; a store in this folder is asked what was before."""

    source = str(files[0].absolute())
    shard = _shard_of(options.shard) if options.shard else None
    failed, seconds = None, {}
    if options.failed or shard:
        store = _store_in(folder)
        if store is not None:
            with store:
                failed = _failed_in(store, source) if options.failed else None
                seconds = store.seconds_of(source) if shard else {}
        if options.failed and failed is None:
            raise InputError(f"--failed: no earlier run of {source} in {folder}")
        if failed is not None and not failed:
            raise InputError("--failed: all was green the last time: there is nothing to run again")
    return Selection(
        only=tuple(options.only or ()),
        failed=failed,
        shard=shard,
        seconds=seconds,
        repeat=options.repeat,
        fail_fast=options.fail_fast,
    )


def _store_in(folder: Path) -> Store | None:
    from rankwise.store import Store
    from rankwise.store.store import FILE

    return Store.open(folder, read_only=True) if (folder / FILE).exists() else None


def _failed_in(store: Store, source: str) -> set[str] | None:
    """Name what was not green in the newest run of a document; None: there was none."""
    run = store.last_run_of(source)
    if run is None:
        return None
    return {
        row.body.tags.get(REPEATED, row.key) if row.body is not None else row.key
        for row in store.task_rows(run, bodies=True)
        if not row.state.is_green
    }


def _shard_of(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise InputError(f"--shard {text}: write it as 2/5, which is the second of five")
    return number, count


TEST = "test"


def cell_of(task: Task) -> tuple[str, str] | None:
    """Name the runtime and the machine of a task; None: it is in no cell."""
    if PART not in task.tags:
        return None
    return task.tags["runtime"], task.tags["machine"]


def is_test(task: Task) -> bool:
    """Return whether a task is a test of its cell; the other one only looks around there."""
    return not is_look(task)


def cells_to_run(tasks: Iterable[Task]) -> list[tuple[str, str]]:
    """Name the cells in which something would run, in their order."""
    cells = (cell_of(task) for task in tasks if not task.skip and is_test(task))
    return list(dict.fromkeys(cell for cell in cells if cell is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the command line says about which tasks are wanted."""

    only: tuple[str, ...] = ()
    """Names, patterns such as `check*`, or `runtime=torch-*,machine=cpu`; none: all."""
    failed: Collection[str] | None = None
    """Those that were not green before; None: that does not matter."""
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
    if wanted.only:
        chosen = _with_needs(chosen, _named(chosen, wanted.only))
    if wanted.failed is not None:
        red = {one.key for one in chosen} & set(wanted.failed)
        if not red:
            shown = ", ".join(sorted(wanted.failed)[:10])
            raise InputError(
                f"--failed: nothing that is selected here was not green the last time; that was "
                f"{shown}: run the same documents without --only, or with all of them"
            )
        keys = _of_their_cells(chosen, red)
        chosen = _with_needs(chosen, keys)
        notices.append(_said_of_failed(chosen, tasks))
    if wanted.shard is not None:
        before = len(chosen)
        chosen, print_ = _share(chosen, *wanted.shard, wanted.seconds)
        number, count = wanted.shard
        notices.append(
            f"shard {number}/{count}: {len(chosen)} of {before} tasks (split {print_}, which must "
            "be the same for all shards)"
        )
    if wanted.repeat > 1:
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
        fitting = [key for key in keys if key == name or fnmatchcase(key, name)]
        if not fitting:
            remedy = hint(name, keys, f"there are {listed(keys, most=10)}")
            raise InputError(f"--only {name}: there is nothing of that name: {remedy}")
        found.update(fitting)
    return found


def _tagged(tasks: Sequence[Task], condition: str) -> set[str]:
    """Name the tasks whose tags are as `runtime=torch-*,machine=cpu` says."""
    wanted = dict(part.strip().partition("=")[::2] for part in condition.split(","))
    known = {name: {task.tags[name] for task in tasks if name in task.tags} for name in wanted}
    for name, pattern in wanted.items():
        if not pattern:
            raise InputError(f"--only {condition}: write it as runtime=NAME,machine=NAME")
        if not known[name]:
            tags = sorted({tag for task in tasks for tag in task.tags})
            remedy = hint(name, tags, f"there are {', '.join(tags) or 'none'}")
            raise InputError(f"--only {condition}: nothing has a {name!r}: {remedy}")
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
    """Take the cells of a matrix as a whole: what is green beside it is what one compares with."""
    cells = {cell_of(task) for task in tasks if task.key in keys and is_test(task)}
    whole = {task.key for task in tasks if cell_of(task) in cells - {None}}
    return set(keys) | whole


def _said_of_failed(chosen: Sequence[Task], tasks: Sequence[Task]) -> str:
    cells = {cell_of(task) for task in chosen} - {None}
    if not cells:
        return f"{len(chosen)} of {len(tasks)} tasks were not green the last time"
    every = {cell_of(task) for task in tasks} - {None}
    return f"{len(cells)} of {len(every)} cells were not green the last time"


def _with_needs(tasks: Sequence[Task], keys: Collection[str]) -> list[Task]:
    """Return these tasks and all that they need, in the order of the plan.

    With a test of a cell goes the look at what it has around it.
    """
    needs = {task.key: task.needs for task in tasks}
    cells = {cell_of(task) for task in tasks if task.key in keys and not task.skip} - {None}
    around = {task.key for task in tasks if cell_of(task) in cells and not is_test(task)}
    wanted = {*keys, *around}
    waiting = list(wanted)
    while waiting:
        new = [need for need in needs[waiting.pop()] if need not in wanted]
        wanted.update(new)
        waiting += new
    return [task for task in tasks if task.key in wanted]


def _share(
    tasks: Sequence[Task], number: int, count: int, seconds: Mapping[str, float]
) -> tuple[list[Task], str]:
    """Return one of several shares that take about as long, and a mark of how it was split.

    The longest comes first, to the share that has least to do. What needs each other stays
    together. What does not run at all is in the first share: where there is something to run, no
    other has nothing but that.
    """
    known = [seconds[task.key] for task in tasks if task.key in seconds]
    usual = sum(known) / len(known) if known else 1.0
    groups = _groups(tasks)
    lengths = [sum(seconds.get(tasks[at].key, usual) for at in group) for group in groups]
    is_idle = [all(tasks[at].skip for at in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda at: (is_idle[at], -round(lengths[at], 3), at))
    loads = [0.0] * count
    share_of: dict[str, int] = {}
    for at in order:
        least = min(range(count), key=lambda share: (round(loads[share], 6), share))
        if is_idle[at]:
            least = 0
        loads[least] += lengths[at]
        share_of |= {tasks[one].key: least for one in groups[at]}
    split = "\n".join(f"{key} {share_of[key]}" for key in sorted(share_of))
    mark = hashlib.sha256(split.encode()).hexdigest()[:6]
    return [task for task in tasks if share_of[task.key] == number - 1], mark


def _groups(tasks: Sequence[Task]) -> list[list[int]]:
    """Put together what needs each other, in whatever number of steps."""
    position = {task.key: at for at, task in enumerate(tasks)}
    leader = list(range(len(tasks)))

    def first(at: int) -> int:
        while leader[at] != at:
            leader[at] = at = leader[leader[at]]
        return at

    for at, task in enumerate(tasks):
        for need in task.needs:
            if need in position:
                one, other = sorted((first(at), first(position[need])))
                leader[other] = one
    groups: dict[int, list[int]] = {}
    for at in range(len(tasks)):
        groups.setdefault(first(at), []).append(at)
    return list(groups.values())


def _repeated(task: Task, times: int) -> list[Task]:
    """Return a task many times; each try needs the same try of what it needs."""
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
    """Return whether all names of a condition have one of the values that are wanted."""
    return all(
        any(is_met(one, values.get(name, "")) for one in wanted)
        for name, wanted in condition.items()
    )


def fits_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of some patterns; without any, all do."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def is_met(wanted: str, value: str) -> bool:
    """Return whether a value is the wanted one, fits that pattern, or compares so: `> 2`."""
    comparison = _COMPARISON.fullmatch(wanted)
    if comparison is None:
        return _is_same(wanted, value) or fnmatchcase(value, wanted)
    sign, other = comparison.groups()
    if sign in ("==", "!="):
        return _is_same(other, value) is (sign == "==")
    left, right = _number(value), _number(other)
    return left is not None and right is not None and bool(OPERATORS[sign](left, right))


def _is_same(wanted: str, value: str) -> bool:
    if wanted == value:
        return True
    # 2.10 comes after 2.9: what ends in a zero like that is a version, not a number.
    if _VERSION.fullmatch(wanted) or _VERSION.fullmatch(value):
        return False
    number = _number(value)
    return number is not None and number == _number(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
