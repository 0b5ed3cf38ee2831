"""A real browser without a window, to look at pages as people do: Debian's Chromium.

    python3 scripts/browser.py --install             no browser, only what is needed for one
    python3 scripts/browser.py PAGE PICTURE          take a picture of a page
    python3 scripts/browser.py --dark --width=400 PAGE PICTURE

It is asked over a pipe, listens nowhere, and ends with this process, whatever happens to it.

Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from children import end_with_parent
from debian import add_option, install, refuse

PACKAGES = ("chromium",)
LIMIT_SECONDS = 60.0
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Not there for root, nor where users have no namespaces. The pages are our own.
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--mute-audio",
    # Nothing leaves this machine, whatever a page or the browser itself may want.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


class BrowserError(Exception):
    """The browser did not do what it was asked."""


class Page:
    """One page that is open, and what it has done."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []
        self.complaints: list[str] = []
        """What the page wrote to the console, and its errors."""
        self._is_loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Ask the browser something about this page, in the words of its protocol."""
        return self._browser.ask(method, parameters, self._session)

    def open(self, file: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._is_loaded = False
        self.ask("Page.navigate", url=file.absolute().as_uri())
        self._browser.wait_until(lambda: self._is_loaded, f"{file} to be loaded")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        said = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in said:
            raise BrowserError(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def look_like(self, *, width: int = 1200, height: int = 900, is_dark: bool = False) -> None:
        """Show pages in a window of this size, in a scheme of colours."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def without_scripts(self) -> None:
        """Run no scripts from now on."""
        self.ask("Emulation.setScriptExecutionDisabled", value=True)

    def picture(self, *, of_all: bool = True) -> bytes:
        """Return the whole page as PNG, or what the window shows of it."""
        said = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=of_all)
        return base64.b64decode(said["data"])

    def hear(self, method: str, what: Mapping[str, Any]) -> None:
        """Take in what the browser tells without being asked."""
        match method:
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(what["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(what["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(what["args"]))
            case "Log.entryAdded":
                self.complaints.append(what["entry"]["text"])


class Browser:
    """A browser that is running."""

    def __init__(self, folder: Path) -> None:
        # Two pipes, which the browser has as 3 and 4.
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        line = [str(shutil.which("chromium")), *_OPTIONS, f"--user-data-dir={folder}/profile"]
        shell = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    shell,
                    "bash",
                    str(theirs_in),
                    str(theirs_out),
                    *line,
                    "about:blank",
                ],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # It makes a socket there, and aborts where the name of the folder is long.
                env={**os.environ, "HOME": str(folder), "TMPDIR": "/tmp"},
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  there are no threads
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._log = folder / "browser.log"
        self._number = 0
        self._rest = b""
        self._answers: dict[int, Any] = {}
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """Open a new page."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        session = str(attached["sessionId"])
        self._pages[session] = page = Page(self, session)
        return page

    def ask(self, method: str, parameters: Mapping[str, Any], session: str = "") -> Any:
        """Ask something and wait for the answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self.wait_until(lambda: number in self._answers, f"an answer to {method}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_until(self, is_there: Callable[[], bool], what: str) -> None:
        """Take in what the browser says until something is there, but not for ever."""
        end = time.monotonic() + LIMIT_SECONDS
        while not is_there():
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                said = self._log.read_text(errors="replace")[-2000:]
                raise BrowserError(f"no sign of {what}; the browser said: {said}")
            *messages, self._rest = (self._rest + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif page := self._pages.get(message.get("sessionId", "")):
            page.hear(message["method"], message["params"])

    def close(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser that ends with the block."""
    with tempfile.TemporaryDirectory(
        prefix="rankwise-browser-", ignore_cleanup_errors=True
    ) as folder:
        started = Browser(Path(folder))
        try:
            yield started
        finally:
            started.close()


def obstacle() -> str | None:
    """Say why there can be no browser here, or None."""
    if shutil.which("chromium") is None:
        return f"chromium cannot be found: apt-get install {' '.join(PACKAGES)}"
    return None


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_option(parser)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("files", nargs="*", type=Path, metavar="PAGE PICTURE")
    chosen = parser.parse_args(arguments)
    if why := install(PACKAGES, obstacle):
        return refuse(f"no browser here: {why}", chosen, environment)
    if chosen.install:
        return 0
    source, picture = chosen.files
    with browser() as started:
        page = started.page()
        page.look_like(width=chosen.width, height=chosen.height, is_dark=chosen.dark)
        page.open(source)
        picture.write_bytes(page.picture())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
