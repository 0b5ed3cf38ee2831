"""What can be seen of the folders that a pipeline works with, before anything runs."""

from __future__ import annotations

import os
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rankwise.errors import InputError
from rankwise.planning.stages import Scene
from rankwise.repositories import changes_in, folder_for
from rankwise.spec.stages import Stage


def check_targets(scene: Scene) -> None:
    """Raise InputError for places that cannot be deployed to, checkouts with changes, strangers."""
    found = [
        complaint
        for name, stage in scene.model.stages.items()
        for complaint in (
            *_deploys(scene, name, stage),
            *_checkouts(scene, name, stage),
            *_notices(scene, stage),
        )
    ]
    if found:
        raise InputError("\n".join(found))


def _deploys(scene: Scene, name: str, stage: Stage) -> Iterator[str]:
    if stage.deploy is None:
        return
    target = _folder(scene, stage, stage.deploy.to)
    if target is None:
        return
    nearest = next(one for one in (target, *target.parents) if one.exists() or one.is_symlink())
    if not nearest.is_dir():
        place = scene.document.place(("to",), stage.deploy.to)
        yield f"{place}: `{name}` cannot deploy to {target}: {nearest} is a file, not a folder"
    elif (target / "current").exists() and not (target / "current").is_symlink():
        place = scene.document.place(("to",), stage.deploy.to)
        yield (
            f"{place}: `{name}` cannot deploy to {target}: `current` in it is not a link of "
            "rankwise's; move it away"
        )


def _checkouts(scene: Scene, name: str, stage: Stage) -> Iterator[str]:
    step = stage.checkout
    if step is None or step.clean:
        return
    folder = _folder(scene, stage, step.into or folder_for(step.repository))
    if folder is None or not (folder / ".git").exists():
        return
    try:
        changed = changes_in(folder)
    except (OSError, subprocess.SubprocessError):
        return
    if changed:
        place = scene.document.place(("repository", "checkout"), step.repository)
        shown = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        yield (
            f"{place}: `{name}` would overwrite what was changed by hand in {folder}: {shown}; "
            "commit it, or say `clean: true` to throw it away"
        )


def _notices(scene: Scene, stage: Stage) -> Iterator[str]:
    for name in stage.notify.to if stage.notify is not None else ():
        try:
            scene.ask.site.notify(name)
        except InputError as error:
            yield f"{scene.document.place(('to',), name)}: {error}"


def _folder(scene: Scene, stage: Stage, written: str) -> Path | None:
    """Give a folder as the stage will see it; None: that is known only when it runs."""
    known = {**os.environ, **scene.model.env, **stage.env}
    try:
        text = string.Template(written).substitute(known)
    except (KeyError, ValueError):
        return None
    if "${{" in text:
        return None
    return scene.workspace / stage.folder / Path(text).expanduser()
