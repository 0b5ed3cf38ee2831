"""Another package with entry points, installed in a folder."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, source: str, *, group: str, **entries: str) -> None:
    """Put a package of one module into a folder that Python searches."""
    (folder / f"{name}.py").write_text(source)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{entry} = {name}:{what}\n" for entry, what in entries.items())
    (facts / "entry_points.txt").write_text(f"[{group}]\n{lines}")
