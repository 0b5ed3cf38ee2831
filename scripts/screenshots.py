"""Takes the pictures of the live page that are in the documentation, with Debian's Chromium.

    .venv/bin/python scripts/screenshots.py [FOLDER]      otherwise docs/pictures

The page is the real one, served by `rankwise serve`. The runs that it shows are made up.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import served_runs  # noqa: E402  the root has to be found first
from rankwise.store import Store  # noqa: E402
from rankwise.store.store import driving  # noqa: E402

CHROMIUM = "/usr/bin/chromium"
# Name of the picture, address, and how it is looked at.
PICTURES: Sequence[tuple[str, str, dict[str, object]]] = (
    ("run", "/runs/nightly-1", {}),
    ("run-phone", "/runs/nightly-1", {"viewport": {"width": 390, "height": 800}}),
    ("failures", "/runs/checks-1/failures", {}),
    ("matrix", "/runs/everywhere-1/matrix", {}),
    ("timeline", "/runs/checks-1/timeline", {}),
    ("logs", "/runs/checks-1/logs?task=halo", {}),
    ("trends", "/trends?metric=latency&name=osu", {}),
)


def main(arguments: Sequence[str]) -> int:
    """Take all pictures."""
    target = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rankwise-pictures-") as folder:
        store = Path(folder) / ".rankwise"
        fill(store)
        line = [sys.executable, "-m", "rankwise.cli.main", "serve", "--port", "0"]
        with subprocess.Popen(
            [*line, "--store", str(store)], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                # Without a client that drives them, the page calls these runs interrupted.
                with (
                    driving(store / "runs" / "nightly-1", "nightly-1"),
                    driving(store / "runs" / "release-1", "release-1"),
                ):
                    take(address_of(server), target)
            finally:
                server.terminate()
        take_report(store, Path(folder) / "report.html", target / "report")
    return 0


def fill(folder: Path) -> None:
    """Make the runs that are shown."""
    now = time.time()
    with Store.open(folder) as store:
        served_runs.add_history(store, runs=30, at=now - 40 * 3600)
        served_runs.add_matrix(store, at=now - 4000)
        served_runs.add_tests(store, at=now - 2000)
        served_runs.add_pipeline(store, at=now - 70)
        served_runs.add_many(store, tasks=10_000, done=6312, at=now - 130)


def address_of(server: subprocess.Popen[str]) -> str:
    """Wait until the server says where it is."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise SystemExit("the server has left without an address")


def take(address: str, target: Path) -> None:
    """Take a picture of each page."""
    base = address.partition("/?")[0]
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, path, look in PICTURES:
            picture(browser, address, base + path, look, target / name)
        browser.close()


def take_report(store: Path, page: Path, target: Path) -> None:
    """Take a picture of a report, which is a file."""
    rankwise = [
        sys.executable,
        "-m",
        "rankwise.cli.main",
        "report",
        "osu-30",
        "--store",
        str(store),
    ]
    subprocess.run([*rankwise, "--html", str(page)], check=True)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1180, "height": 1000})
        tab.goto(page.as_uri())
        tab.screenshot(path=target.with_suffix(".png"))
        browser.close()


def picture(browser: Browser, door: str, page: str, look: dict[str, object], target: Path) -> None:
    """Take one; `door` is the address with the token."""
    wanted = {"viewport": {"width": 1180, "height": 800}, **look}
    context = browser.new_context(**wanted)  # type: ignore[arg-type]  # as written above
    tab = context.new_page()
    tab.goto(door)
    tab.wait_for_url("**/")
    tab.goto(page)
    tab.screenshot(path=target.with_suffix(".png"))
    context.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
