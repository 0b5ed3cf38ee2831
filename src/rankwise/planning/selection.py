"""Which tasks of a plan are wanted: some by name, those that failed, a share, or all many times."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from rankwise.errors import InputError
from rankwise.plan import REPEATED, Task
from rankwise.planning.cell_names import cell_of, is_test
from rankwise.spec.mistakes import nearest


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
    """Give the tasks that are wanted, with all that they need, and what people must know.

    Raises InputError if a name means none of them.
    """
    chosen, notices = list(tasks), []
    if wanted.only:
        chosen = _with_needs(chosen, _named(chosen, wanted.only))
    if wanted.failed is not None:
        keys = _of_their_cells(chosen, {one.key for one in chosen} & set(wanted.failed))
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
            meant = nearest(name, keys)
            shown = ", ".join(keys[:10]) + (" …" if len(keys) > 10 else "")
            hint = f"did you mean {meant}?" if meant else f"there are {shown}"
            raise InputError(f"--only {name}: there is nothing of that name: {hint}")
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
            meant = nearest(name, tags)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(tags) or 'none'}"
            raise InputError(f"--only {condition}: nothing has a {name!r}: {hint}")
        if not any(fnmatchcase(value, pattern) for value in known[name]):
            meant = nearest(pattern, known[name])
            shown = ", ".join(sorted(known[name])[:10])
            hint = f"did you mean {meant}?" if meant else f"there are {shown}"
            raise InputError(f"--only {condition}: there is no {name} {pattern}: {hint}")
    fitting = {
        task.key
        for task in tasks
        if all(fnmatchcase(task.tags.get(tag, ""), one) for tag, one in wanted.items())
    }
    if not fitting:
        raise InputError(f"--only {condition}: there are both, but nothing that is all of it")
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
    """Give these tasks and all that they need, in the order of the plan.

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
    """Give one of several shares that take about as long, and a mark of how it was split.

    The longest comes first, to the share that has least to do. What needs each other stays
    together.
    """
    known = [seconds[task.key] for task in tasks if task.key in seconds]
    usual = sum(known) / len(known) if known else 1.0
    groups = _groups(tasks)
    lengths = [sum(seconds.get(tasks[at].key, usual) for at in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda at: (-round(lengths[at], 3), at))
    loads = [0.0] * count
    share_of: dict[str, int] = {}
    for at in order:
        least = min(range(count), key=lambda share: (round(loads[share], 6), share))
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
    """Give a task many times; each try needs the same try of what it needs."""
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
