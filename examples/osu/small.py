"""Run one of the OSU benchmarks with messages and repetitions for a laptop.

mpiexec -n 2 python small.py osu_latency
"""

import importlib
import inspect
import sys
from pathlib import Path

SMALL = {
    "MAX_MSG_SIZE": 1 << 14,
    "skip": 10,
    "loop": 100,
    "skip_small": 10,
    "loop_small": 100,
    "skip_large": 2,
    "loop_large": 20,
}

sys.path.insert(0, str(Path(__file__).resolve().parent / ".benchmarks"))
name = sys.argv[1]
benchmark = getattr(importlib.import_module(name), name)
known = inspect.signature(benchmark).parameters
benchmark(**{option: value for option, value in SMALL.items() if option in known})
