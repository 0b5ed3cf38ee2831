"""Values that a function of the user's finds, called in a process of its own.

It may have any of the parameters `output` (the text) and `folder` (where it is called). It gives a
mapping of names to numbers, or a list of mappings as lines of JSON have them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rankwise.metrics.collecting import Collector
from rankwise.metrics.contract import Reading
from rankwise.metrics.parsers.json_text import better, load, mapping, mappings, number, point
from rankwise.plan import Metric

_LAST_CHARACTERS = 500


def read(wish: Metric, text: str) -> Reading:
    """Call the function and read what it gives."""
    found = Collector(wish)
    try:
        answer = _call(wish, text)
    except ValueError as error:
        found.fault(f"{wish.function}: {error}")
        return found.reading()
    if isinstance(answer, dict):
        answer = [{"metric": name, "value": value} for name, value in answer.items()]
    for each in mappings(answer):
        value, name = number(each.get("value")), str(each.get("metric", wish.name))
        if value is None:
            found.fault(
                f"{wish.function} gave {each.get('value')!r} for {name}, which is no number"
            )
        else:
            found.add(
                name,
                value,
                str(each.get("unit", "")),
                better=better(each.get("better")),
                point=point(each.get("point")),
            )
    return found.reading()


def _call(wish: Metric, text: str) -> Any:
    path, _, name = wish.function.rpartition(":")
    with tempfile.TemporaryDirectory(prefix="rankwise-metrics-") as folder:
        output, answer = Path(folder) / "output", Path(folder) / "answer.json"
        output.write_text(text, errors="surrogateescape")
        line = [sys.executable, "-P", "-m", "rankwise.metrics.calling"]
        try:
            done = subprocess.run(
                [*line, str(Path(path).absolute()), name, str(output), str(answer)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=wish.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"it took longer than {wish.seconds:g} s") from None
        try:
            told = mapping(load(answer.read_text()))
        except (OSError, ValueError):
            said = done.stdout.decode(errors="replace").strip()[-_LAST_CHARACTERS:]
            raise ValueError(f"its process ended with {done.returncode}: {said}") from None
    if "fault" in told:
        raise ValueError(str(told["fault"]))
    return told.get("result")
