"""The code of a job in a ConfigMap, file by file, so that people can read what they apply."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.compute.code import files_of_code
from rankwise.errors import InputError
from rankwise.export.contract import Job, Object
from rankwise.export.names import unique

SOURCE = "/rankwise/source"
"""Where a container sees the ConfigMap, below which the code has a folder of its own."""
FOLDER = "code"
"""That folder: what else Kubernetes puts beside it stays out of the copy."""
WORK = "/rankwise/code"
"""Where a container works, in a copy that it may change."""
COPY = f"cp -RL {SOURCE}/{FOLDER}/. {WORK}/"
# Kubernetes takes 1 MiB for all of an object, and what is not text grows by a third.
_MOST_BYTES = 900_000
_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMap:
    """A ConfigMap, and the volume by which a pod sees it."""

    object: Object
    volume: dict[str, Any]


def code_map(job: Job, metadata: Object) -> CodeMap | None:
    """Put the code of a job into a ConfigMap; None: the image has it, or there is none to put.

    Raises InputError if it does not fit.
    """
    if job.code_in_image or not job.code:
        return None
    folder = Path(job.code)
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    items: list[dict[str, Any]] = []
    total, taken = 0, set[str]()
    for path, content, is_program in _files(folder):
        key = unique(_key(path), taken)
        try:
            texts[key] = content.decode()
            total += len(content)
        except UnicodeDecodeError:
            others[key] = base64.b64encode(content).decode()
            total += len(others[key])
        mode = {"mode": 0o755} if is_program else {}
        items.append({"key": key, "path": f"{FOLDER}/{path}", **mode})
        if total > _MOST_BYTES:
            raise InputError(
                f"{job.at(job.code_field)}: {folder} has more than the {_MOST_BYTES // 1000} kB "
                "that fit into a ConfigMap: name what is not code in its .rankwiseignore, or build "
                "an image with it and say --image IMAGE --code-in-image FOLDER"
            )
    if not items:
        return None
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "name": f"{metadata['name']}-code"},
    }
    if texts:
        made["data"] = texts
    if others:
        made["binaryData"] = others
    volume = {"name": "source", "configMap": {"name": f"{metadata['name']}-code", "items": items}}
    return CodeMap(object=made, volume=volume)


def _files(folder: Path) -> Iterator[tuple[str, bytes, bool]]:
    for path in files_of_code(folder):
        name = path.relative_to(folder).as_posix()
        try:
            yield name, path.read_bytes(), os.access(path, os.X_OK)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _key(path: str) -> str:
    """Name a file as a key of a ConfigMap may be named."""
    # The end of a path tells more than its beginning.
    fit = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-_LONGEST_KEY:]
    return f"file{fit}" if fit.startswith("..") else fit
