"""Takes the pictures of terminals, and of a suite's timeline, that are in the documentation.

    .venv/bin/python scripts/terminal_pictures.py [FOLDER]      otherwise docs/pictures

What is on the pictures has happened: real commands in a real terminal (tmux), of which the screen
is drawn as SVG.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from browser import browser
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 92, 26
WIDTH, HEIGHT = 8.4, 19
LIMIT_SECONDS = 120.0
FONT = "ui-monospace,Menlo,DejaVu Sans Mono,monospace"
NO_BREAK = "\N{NO-BREAK SPACE}"
BACKGROUND, FOREGROUND = "#1d2027", "#e4e6eb"

SUITE = """
    import time

    import pytest
    import rankwise


    @rankwise.mark.parallel([2, 3])
    @pytest.mark.parametrize("size", [64, 128, 256, 512])
    def test_halo_exchange(comm, size):
        time.sleep(size / 700)


    @pytest.mark.parametrize("number", range(10))
    def test_on_one_rank(number):
        time.sleep(0.25)


    @rankwise.mark.parallel(4)
    def test_whole_machine(comm):
        time.sleep(1.2)


    @rankwise.mark.parallel(2)
    def test_norm(comm):
        time.sleep(0.4)
        assert comm.rank == 0, "the norm is wrong here"


    def test_restart_from_a_file():
        time.sleep(3)
"""
HANG = """
    import rankwise


    @rankwise.mark.parallel(4)
    def test_solve(comm):
        if comm.rank == 2:
            raise ValueError("the matrix is singular")
        comm.barrier()  # the others wait here for rank 2
"""
SWEEP = """
    type: Sweep
    name: sleeps
    command: sleep 0.${{tenths}} && echo '{"metric":"value","value":${{tenths}},"unit":"1"}'
    parameters: {tenths: [2, 4, 6, 8]}
    trials: 12
    metrics: [{parser: json-lines}]
"""
PLUGINS = " ".join(
    f"-p no:{name}"
    for name in ("anyio", "randomly", "hypothesispytest", "asyncio", "html", "metadata")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A command, and when to look at the screen."""

    name: str
    command: str
    sign: str
    """A pattern that must be on the screen before the picture is taken."""


SCENES = (
    Scene(
        name="terminal-pool",
        command="pytest --n-workers=4 --timeline=timeline.html test_suite.py",
        sign="1 failed, about",
    ),
    Scene(
        name="terminal-hang",
        command="pytest --n-workers=4 --rank-grace=1 --no-header test_hang.py",
        sign="1 failed in",
    ),
    Scene(name="terminal-run", command="rankwise run sweep.yaml", sign=r"\b1[5-9]/48"),
)


def main(arguments: Sequence[str]) -> int:
    """Take all pictures."""
    target = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankwise-pictures-") as folder:
        place = Path(folder)
        for name, text in (("test_suite.py", SUITE), ("test_hang.py", HANG), ("sweep.yaml", SWEEP)):
            (place / name).write_text(textwrap.dedent(text).lstrip("\n"))
        (place / "pytest.ini").write_text(f"[pytest]\naddopts = {PLUGINS}\n")
        for scene in SCENES:
            (target / f"{scene.name}.svg").write_text(drawn(act(scene, place), scene.command))
        picture_of_timeline(place / "timeline.html", target / "suite-timeline.png")
    return 0


def act(scene: Scene, folder: Path) -> list[str]:
    """Run a scene in a terminal; return the screen as it was when the sign was there."""
    # A server of its own: the one before may still be ending.
    socket = str(folder / scene.name)
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    line = f"cd {shlex.quote(str(folder))}; export PATH={shlex.quote(path)}; unset CI NO_COLOR; "
    line += f"clear; {scene.command}; exec sleep 600"
    begin = ["new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS)]
    tmux(socket, *begin, "bash", "-c", line)
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while not re.search(scene.sign, plain := Text.from_ansi(screen := seen(socket)).plain):
            if time.monotonic() > end:
                raise SystemExit(f"{scene.name}: no {scene.sign!r} on the screen:\n{plain}")
            time.sleep(0.05)
        shown = screen.rstrip("\n").split("\n")
        wait_for_end(socket, end)
    finally:
        tmux(socket, "kill-server")
    return shown


def seen(socket: str) -> str:
    """Return what is on the screen now, with its colours."""
    return tmux(socket, "capture-pane", "-e", "-p")


def wait_for_end(socket: str, end: float) -> None:
    """Let the command come to its end: what it leaves behind is needed."""
    while "sleep" not in tmux(socket, "display-message", "-p", "#{pane_current_command}"):
        if time.monotonic() > end:
            return
        time.sleep(0.1)


def tmux(socket: str, *arguments: str) -> str:
    done = subprocess.run(
        ["tmux", "-S", socket, "-f", "/dev/null", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout


def drawn(screen: Sequence[str], command: str) -> str:
    """Draw a screen."""
    lines = [Text.from_ansi(f"\x1b[1m$ {command}\x1b[0m"), *map(Text.from_ansi, screen)]
    width, height = round(COLUMNS * WIDTH + 32), round(len(lines) * HEIGHT + 32)
    rows = "".join(row(line, 32 + HEIGHT * number) for number, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(command)}" font-family="{FONT}" font-size="14" xml:space="preserve">'
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>{rows}</svg>\n'
    )


def row(line: Text, y: float) -> str:
    parts = []
    for start, text, style in pieces(line):
        colour = style.color.get_truecolor(MONOKAI).hex if style.color else FOREGROUND
        faint = ' opacity="0.6"' if style.dim else ""
        bold = ' font-weight="bold"' if style.bold else ""
        x, length = 16 + WIDTH * start, WIDTH * len(text)
        parts.append(
            f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" fill="{colour}"{bold}{faint}>'
            # Blanks in a row would be drawn as one.
            f"{escape(text).replace('  ', NO_BREAK * 2)}</text>"
        )
    return "".join(parts)


def pieces(line: Text) -> Iterator[tuple[int, str, Style]]:
    """Cut a line where its style changes; blanks at either end of a piece are left out."""
    start = 0
    for text, style in ((one.plain, _style(one)) for one in line.divide(_edges(line))):
        bare = text.strip(" ")
        if bare:
            yield start + len(text) - len(text.lstrip(" ")), bare, style
        start += len(text)


def _edges(line: Text) -> list[int]:
    return sorted({edge for span in line.spans for edge in (span.start, span.end)})


def _style(part: Text) -> Style:
    found = Style.null()
    for span in part.spans:
        found += span.style if isinstance(span.style, Style) else Style.parse(span.style)
    if found.color is not None and found.color == Color.default():
        return Style(bold=found.bold, dim=found.dim)
    return found


def picture_of_timeline(page: Path, target: Path) -> None:
    with browser() as one:
        shown = one.page()
        shown.look_like(width=1180, height=760)
        shown.open(page)
        target.write_bytes(shown.picture(of_all=False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
