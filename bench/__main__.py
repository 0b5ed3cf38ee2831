from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import (
    environment,
    faults,
    first_answer,
    histories,
    isolated,
    mixed,
    notebooks,
    pingpong,
    pipeline,
    planned,
    queued,
    report,
    runtimes,
    serial,
    serve,
    simulated,
    slurm_tests,
    startup,
    tasks,
    trend,
    two_ranks,
)
from bench.load import watch_load
from bench.measure import BenchError
from bench.table import Table

CASES: Mapping[str, Callable[[Path, int], Table | Sequence[Table]]] = {
    "serial": serial.run,
    "two_ranks": two_ranks.run,
    "startup": startup.run,
    "mixed": mixed.run,
    "isolated": isolated.run,
    "faults": faults.run,
    "slurm": slurm_tests.run_steps,
    "slurm_pool": slurm_tests.run_pool,
    "simulated": simulated.run,
    "tasks": tasks.run,
    "queue": queued.run,
    "pipeline": pipeline.run,
    "plan": planned.run,
    "report": report.run,
    "serve": serve.run,
    "help": first_answer.run,
    "histories": histories.run,
    "pingpong": pingpong.run,
    "trend": trend.run,
    "notebooks": notebooks.run,
    "runtimes": runtimes.run,
}

_VERSIONS = """
import mpi4py, pytest
mpi4py.rc.initialize = False
from mpi4py import MPI
from rankwise.launch.mpi import library_name
print(f"pytest {pytest.__version__}, mpi4py {mpi4py.__version__}", end=", ")
print(library_name(MPI.Get_library_version()))
"""


def describe_machine() -> str:
    """Say what the numbers were measured on."""
    versions = subprocess.run(
        [environment.BENCH.python, "-c", _VERSIONS], capture_output=True, text=True, check=True
    )
    python = f"Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.system()}, {python}, {versions.stdout.strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure speed beside what it is compared with."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="default: 5")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    environment.prepare(environment.BENCH)
    print(describe_machine(), flush=True)
    for name in names:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rankwise-bench-") as folder:
            try:
                with watch_load() as load:
                    made = CASES[name](Path(folder), arguments.repetitions)
            except BenchError as error:
                print(f"bench: {error}", file=sys.stderr)
                return 1
        tables = [made] if isinstance(made, Table) else made
        shown = "\n\n".join(map(str, tables))
        print(f"\n{shown}\n  {load}, {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
