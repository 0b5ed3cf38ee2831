"""Plans on a terminal: what would run, where, and what was derived."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rankwise.checks.sources import describe
from rankwise.plan import Plan, Process, Resources, RuntimeChoice, Task, show
from rankwise.reports.terminal.console import show_notices, show_sentence, styled
from rankwise.safe_text import clip
from rankwise.wording import counted, duration, fold, grouped, label, listed, size

if TYPE_CHECKING:
    from rich.console import Console

# More tasks than this have a line each, and more processes than this are not all listed.
_MOST_TASKS = 10
_MOST_PROCESSES = 8


def show_plan(console: Console, plan: Plan, *, only: str = "") -> None:
    """Show a plan; `only` is the key of the one task that is wanted."""
    tasks = [plan.task(only)] if only else plan.tasks
    heading = styled((plan.name, "bold"), f": {plan.kind}")
    heading.append(f", {counted(len(plan.tasks), 'task')}")
    heading.append(f", experiment {plan.experiment}" if plan.experiment else "")
    console.print(heading)
    show_notices(console, plan.notices)
    if len(tasks) > _MOST_TASKS:
        _show_many(console, tasks)
        return
    for task in tasks:
        console.print()
        _show_task(console, task)


def plan_data(plan: Plan) -> dict[str, Any]:
    """Make plain data of a plan, for JSON; what is known only at the start is said in words."""
    data: dict[str, Any] = _readable(asdict(plan))
    return data


def _readable(value: Any) -> Any:
    match value:
        case str():
            return show(value)
        case Mapping():
            return {key: _readable(one) for key, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
    return value


def _show_many(console: Console, tasks: Sequence[Task]) -> None:
    width = max(len(task.key) for task in tasks)
    lines = []
    for task in tasks:
        command = _command(task.processes[0]) if task.processes else ""
        line = f"  {task.key:{width}}  {_left_out(task) or command}"
        lines.append(clip(line, console.width))
    # All at once, and as it is: there may be thousands.
    console.file.write("\n".join([*lines, ""]))
    console.print(f"\n  all about one of them:  --task {tasks[0].key}", style="dim")


def _show_task(console: Console, task: Task) -> None:
    console.print(styled((task.key, "bold")))
    facts = _facts(task)
    width = max(map(len, facts))
    for name, value in facts.items():
        console.print(styled("  ", (f"{name:{width}}  ", "cyan"), value), soft_wrap=True)
    # Ranks differ in few variables: what they share is shown once.
    common = _common_environment(task.processes)
    _show_block(console, "environment", _assignments({**task.environment, **common}))
    for name, text in task.files.items():
        if name.startswith("."):
            # Ours, around what the document says, and the same for all.
            continue
        _show_block(console, f"file {show(name)}", show(text).splitlines())
    for command, them in _by_command(task.processes):
        nodes = sorted({process.node for process in them})
        where = fold(f"node-{node}" for node in nodes)
        ends = "" if all(one.is_awaited for one in them) else ", ended when the others are done"
        names = fold(process.name for process in them)
        console.print(styled("  ", (names, "cyan"), f" on {where}{ends}"))
        for line in command.splitlines():
            console.print(styled((f"    {line}", "bold")), soft_wrap=True)
        _show_own_environments(console, them, common)
    _show_block(console, "checks", [describe(check) for check in task.checks])
    if task.notes:
        console.print(styled(("  derived", "cyan")))
    for note in task.notes:
        show_sentence(console, "    ", show(note))


def _facts(task: Task) -> dict[str, str]:
    width = task.width or len(task.processes)
    facts = {
        "not run": _left_out(task),
        "compute": f"{task.compute}, {counted(task.nodes, 'node')}, {counted(width, 'process')}",
        "runtime": _runtime(task.runtime),
        "code": f"{task.repository or task.code}, copied for each node" if task.code else "",
        **{f"{p.role} runs in": _runtime(p.runtime) for p in task.processes if p.runtime},
        **{f"{p.role} has code": p.code for p in task.processes if p.code},
        "folder": "" if task.code else task.folder,
        "needs": listed(task.needs, most=20),
        "claims": _claims(task.resources),
        "time limit": duration(task.timeout) if task.timeout is not None else "",
        "restarts": _restarts(task),
        "secrets": f"{listed(task.secrets)} (from the environment)" if task.secrets else "",
        "outputs": task.outputs,
        "tags": ", ".join(f"{name}={value}" for name, value in task.tags.items()),
    }
    return {name: value for name, value in facts.items() if value}


def _left_out(task: Task) -> str:
    if not task.skip:
        return ""
    return f"{'skipped' if task.is_optional else 'not run'}: {task.skip}"


def _runtime(choice: RuntimeChoice) -> str:
    # In the words of the document.
    match choice.kind:
        case "current":
            how = "the interpreter of rankwise"
        case "python":
            how = choice.python
        case "uv":
            packages = filter(None, (choice.lock, *choice.requirements))
            how = f"made by uv: {listed(list(packages)) or 'no packages'}"
            how += f", Python {choice.python}" if choice.python else ""
        case "modules":
            how = f"modules {listed(choice.modules)}"
        case _:
            how = f"{choice.image}, {choice.engine}".removesuffix(", ")
            how += f", built from {choice.build}" if choice.build else ""
    return how if choice.name == choice.kind else f"{choice.name}: {how}"


def _claims(claimed: Resources) -> str:
    parts = [
        counted(claimed.gpus, "GPU") if claimed.gpus else "",
        f"{claimed.cores:g} core{'s' * (claimed.cores != 1)}" if claimed.cores else "",
        f"{size(claimed.memory)} of memory" if claimed.memory else "",
    ]
    return ", ".join(filter(None, parts))


def _restarts(task: Task) -> str:
    if not task.restart.most:
        return ""
    codes = listed([str(code) for code in task.restart.on_exit_codes])
    return f"up to {task.restart.most}{f', after exit code {codes}' if codes else ''}"


def _common_environment(processes: Sequence[Process]) -> dict[str, str]:
    """Return the variables that are the same for all processes."""
    first = processes[0].environment if processes else {}
    return {
        name: value
        for name, value in first.items()
        if all(other.environment.get(name) == value for other in processes)
    }


def _show_own_environments(
    console: Console, processes: Sequence[Process], common: Mapping[str, str]
) -> None:
    shown = processes
    # The last one shows how numbers go on.
    if len(processes) > _MOST_PROCESSES:
        shown = [*processes[: _MOST_PROCESSES - 2], processes[-1]]
    for process in shown:
        if process is processes[-1] and len(shown) < len(processes):
            console.print("    ...")
        if own := {key: one for key, one in process.environment.items() if key not in common}:
            text = f"    {label(process.name)}: {' '.join(_assignments(own))}"
            console.print(text, soft_wrap=True)


def _by_command(processes: Iterable[Process]) -> list[tuple[str, list[Process]]]:
    # Ranks of one node or of many mostly differ in their variables only.
    groups = grouped(((one.role, _command(one), one.is_awaited), one) for one in processes)
    return [(command, them) for (_, command, _), them in groups.items()]


def _command(process: Process) -> str:
    command = process.command
    return show(command if isinstance(command, str) else shlex.join(command))


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={show(value)}" for name, value in environment.items()]


def _show_block(console: Console, name: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(styled((f"  {name}", "cyan")))
        for line in lines:
            console.print(f"    {show(line)}", soft_wrap=True)
