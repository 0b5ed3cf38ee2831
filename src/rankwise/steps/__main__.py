"""Run one step of a pipeline: `python -m rankwise.steps NAME --option=value ...`."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Any

from rankwise.steps import guarded

STEPS: Mapping[str, str] = {
    "artifacts": "keeping:artifacts_step",
    "cache": "keeping:cache_step",
    "checkout": "workspace:checkout_step",
    "deploy": "releases:deploy_step",
    "detach": "detach:detach_step",
    "fetch": "keeping:fetch_step",
    "notify": "reporting:notify_step",
    "report": "reporting:report_step",
    "runtime": "workspace:runtime_step",
    "samples": "reporting:samples_step",
    "wait": "wait:wait_step",
}
"""The module and the function of each step; its parameters are the options of the step."""


def parsed(name: str, step: Callable[..., None], words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a step from the words of its command line; may exit, with 2."""
    about = step.__doc__
    # What is left out has the default of the parameter.
    parser = ArgumentParser(f"rankwise.steps {name}", description=about, argument_default=SUPPRESS)
    for one in signature(step, eval_str=True).parameters.values():
        option, kind = f"--{one.name.replace('_', '-')}", one.annotation
        if kind is bool:
            parser.add_argument(option, action="store_true")
            continue
        act, kind = ("append", str) if kind == Sequence[str] else ("store", kind)
        parser.add_argument(option, action=act, type=kind, required=one.default is one.empty)
    return vars(parser.parse_args(words))


def main() -> int:
    """Run the step that the command line names, with the rest of the line."""
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        print(f"usage: python -m rankwise.steps {'|'.join(STEPS)} ...", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A report has words that not every terminal can show.
            stream.reconfigure(errors="backslashreplace")
    name, *words = sys.argv[1:]
    step = resolve_name(f"rankwise.steps.{STEPS[name]}")
    return guarded(lambda: step(**parsed(name, step, words)))


if __name__ == "__main__":
    sys.exit(main())
