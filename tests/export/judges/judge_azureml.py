"""Load command jobs with Azure ML's own package; runs where that is installed.

Reads a list of files as JSON, and writes a list: for each, what it was taken for, or what is wrong.
"""

import json
import sys

from azure.ai.ml import load_job  # type: ignore[import-not-found]  # installed elsewhere


def judge(file: str) -> dict[str, object]:
    try:
        job = load_job(source=file)
        # A sweep is checked when it is loaded.
        verdict = job._validate() if hasattr(job, "_validate") else None
        wrong = "" if verdict is None or verdict.passed else str(verdict.error_messages)
        return {"wrong": wrong, "job": json.loads(json.dumps(job._to_dict(), default=str))}
    except Exception as error:
        return {"wrong": f"{type(error).__name__}: {error}", "job": {}}


answers = [judge(file) for file in json.load(sys.stdin)]
# The package has written all sorts of warnings to the standard error.
json.dump(answers, sys.stdout)
