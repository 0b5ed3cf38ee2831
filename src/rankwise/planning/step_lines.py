"""Command lines of the programs in `rankwise.steps`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rankwise.plan import later
from rankwise.spec.stages import Stage
from rankwise.spec.steps import Cache

Line = tuple[str, ...]


def program(name: str, *arguments: str) -> Line:
    """Give the line that runs a program, whatever Python a stage has for itself."""
    return (sys.executable, "-I", "-m", f"rankwise.steps.{name}", *arguments)


def step_line(stage: Stage) -> Line:
    """Give the line of a stage that is a step of rankwise's own."""
    lines = (
        _checkout(stage),
        _runtime(stage),
        _deploy(stage),
        _report(stage),
        _notify(stage),
        _wait(stage),
    )
    return next(line for line in lines if line)


def keep_line(stage: str, cell: str, patterns: Sequence[str]) -> Line:
    """Give the line that keeps artifacts."""
    into = f"{later(f'artifacts:{stage}')}{f'/{cell}' if cell else ''}"
    objects = f"{later('store')}/objects"
    return program("artifacts", "--into", into, "--objects", objects, *patterns)


def cache_lines(cache: Cache, command: str) -> tuple[Line, Line]:
    """Give the lines that put back what was kept, and that keep it."""
    common = ["--store", f"{later('store')}/cache", "--command", command]
    common += [word for name in cache.key for word in ("--key", name)]
    return (
        program("cache", "restore", *common, *cache.paths),
        program("cache", "save", *common, *cache.paths),
    )


def detach_line(source: str, stage: str, *, is_forced: bool) -> Line:
    """Give the line that has a stage run by itself."""
    line = program("detach", source, stage, "--store", later("store"), "--run", later("run"))
    return (*line, "--force") if is_forced else line


def _checkout(stage: Stage) -> Line:
    if (step := stage.checkout) is None:
        return ()
    line = [step.repository, *_option("--ref", step.ref), *_option("--into", step.into)]
    return program("checkout", *line, *_flag("--clean", is_set=step.clean))


def _runtime(stage: Stage) -> Line:
    if (step := stage.runtime) is None:
        return ()
    line = [step.into, *_option("--python", step.python)]
    line += [word for name in step.requirements for word in ("--requirements", name)]
    line += [word for name in step.packages for word in ("--package", name)]
    return program("runtime", *line, *_flag("--site-packages", is_set=step.site_packages))


def _deploy(stage: Stage) -> Line:
    if (step := stage.deploy) is None:
        return ()
    name = step.name or later("run")
    return program("deploy", step.source, step.to, "--name", name, "--keep", str(step.keep))


def _report(stage: Stage) -> Line:
    if (step := stage.report) is None:
        return ()
    return program("report", step.to, "--store", later("store"), "--run", later("run"))


def _notify(stage: Stage) -> Line:
    if (step := stage.notify) is None:
        return ()
    line = [*_option("--command", step.run), *_option("--file", step.file)]
    line += [word for name in step.to for word in ("--to", name)]
    return program("notify", *line, "--store", later("store"), "--run", later("run"))


def _wait(stage: Stage) -> Line:
    if (step := stage.wait) is None:
        return ()
    line = ["--submit", step.submit, "--state", step.state, "--job", step.job, "--done", step.done]
    line += [*_option("--failed", step.failed), *_option("--cancel", step.cancel)]
    line += ["--interval", f"{step.interval:g}", *_flag("--gone", is_set=step.gone)]
    return program("wait", *line)


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _flag(name: str, *, is_set: bool) -> list[str]:
    return [name] if is_set else []
