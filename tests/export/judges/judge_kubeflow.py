"""Judge objects by the models that Kubeflow publishes; runs where those are installed.

Reads a list of objects as JSON, and writes a list: for each, what is wrong with it, or "". A model
takes what it knows and leaves the rest, so what it gives back must be what was written.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

from kubeflow import training  # type: ignore[import-not-found]  # installed elsewhere
from kubeflow_trainer_api import (  # type: ignore[import-not-found]  # installed elsewhere
    models as trainer,
)

client = training.ApiClient()


def given_back(written: dict[str, Any]) -> Any:
    if written["apiVersion"] == "kubeflow.org/v1":
        name = f"KubeflowOrgV1{written['kind']}"
        # Its client reads answers of a server.
        answer = SimpleNamespace(data=json.dumps(written))
        return client.sanitize_for_serialization(client.deserialize(answer, name))
    return trainer.TrainerV1alpha1TrainJob.from_dict(written).to_dict()


def judge(written: dict[str, Any]) -> str:
    try:
        found = given_back(written)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if found == written else f"{found} was made of {written}"


json.dump([judge(one) for one in json.load(sys.stdin)], sys.stdout)
