"""A client that submits one attempt, says when it has begun, and does nothing more: it is killed.

python -m tests.backends.client FOLDER MARKER ATTEMPT_FOLDER COMMAND
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rankwise.backends.base import Attempt
from tests.backends.places import Place, Watching


def main(folder: str, marker: str, place: str, command: str) -> None:
    own = Place(folder=Path(folder), table="")
    compute = own.open()
    attempt = Attempt(label="run-1/task/1", marker=marker, folder=Path(place))
    attempt.folder.mkdir(parents=True)
    compute.submit(own.job(attempt, command))
    watching = Watching(compute, own.updates)
    watching.until_written(attempt, "begun")
    while not (numbers := [one.job_id for one in watching.news if one.job_id]):
        watching.hear(0.1)
    print(numbers[0], flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
