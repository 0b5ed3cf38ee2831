"""From the checks in a document to those of a task."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rankwise import plan
from rankwise.errors import InputError
from rankwise.plan import Task
from rankwise.spec.checks import Check
from rankwise.spec.documents import Document
from rankwise.spec.mistakes import nearest
from rankwise.spec.written import Found

APART = {"RANKWISE_STREAMS": "apart"}
"""What has the runner keep what goes to stdout and to stderr apart."""


def checks_at(
    document: Document, path: Sequence[int | str], checks: Sequence[Check]
) -> tuple[plan.Check, ...]:
    """Plan the checks at a place of a document; raises InputError if a function is not there."""
    folder = document.path.absolute().parent
    planned = [check.planned(folder) for check in checks]
    for number, check in enumerate(planned):
        if check.kind == "python" and (fault := _fault_of(check.what)):
            at = Found(document.contents, (*path, number, "python")).value_at
            raise InputError(f"{document.path}:{at.line}:{at.column}: {fault}")
    return tuple(planned)


def with_checks(task: Task, checks: Sequence[plan.Check]) -> Task:
    """Have a task checked, and have it keep what the checks look at."""
    needs_streams = any(check.on in ("stdout", "stderr") for check in checks)
    environment = {**task.environment, **(APART if needs_streams else {})}
    return dataclasses.replace(task, checks=tuple(checks), environment=environment)


def _fault_of(function: str) -> str:
    """Say what is wrong with FILE:FUNCTION, without running any of it; empty: nothing is."""
    path, _, name = function.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_bytes())
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        return f"{path} is no Python: {error}"
    names = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    if name in names or _has_other_names(tree):
        return ""
    meant = nearest(name, names)
    return f"{path} has no function `{name}`" + (f": did you mean `{meant}`?" if meant else "")


def _has_other_names(tree: ast.Module) -> bool:
    """Tell whether names may come from elsewhere: by an import, an assignment or a condition."""
    plain = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Expr | ast.Import
    return not all(isinstance(node, plain) for node in tree.body)
