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
    number = compute.submit(own.job(attempt, command))
    while number is None:
        compute.wait(0.1)
        number = next((one.job_id for one in compute.news() if one.job_id), None)
    Watching(compute).until_written(attempt, "begun")
    print(number, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
