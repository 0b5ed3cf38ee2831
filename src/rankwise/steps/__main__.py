"""Run one step of a pipeline: `python -m rankwise.steps NAME ...`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from io import TextIOWrapper
from pkgutil import resolve_name

from rankwise.steps import guarded

STEPS: Mapping[str, str] = {
    "artifacts": "keeping:artifacts_main",
    "cache": "keeping:cache_main",
    "checkout": "workspace:checkout_main",
    "deploy": "releases:deploy_main",
    "detach": "detach:main",
    "notify": "reporting:notify_main",
    "report": "reporting:report_main",
    "runtime": "workspace:runtime_main",
    "wait": "wait:main",
}
"""The module and the function of each step."""


def main() -> int:
    """Run the step that the command line names, with the rest of the line."""
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        print(f"usage: python -m rankwise.steps {'|'.join(STEPS)} ...", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A report has words that not every terminal can show.
            stream.reconfigure(errors="backslashreplace")
    return guarded(resolve_name(f"rankwise.steps.{STEPS[sys.argv.pop(1)]}"))


if __name__ == "__main__":
    sys.exit(main())
