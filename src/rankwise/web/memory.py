"""Pages that were made a moment ago: who asks for the same is shown the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rankwise.store import State
from rankwise.web.ask import Ask
from rankwise.web.page import Page, whole
from rankwise.web.readers import Desk

_MOST_PAGES = 16
_MOST_BYTES = 300_000
# Pages that are to be asked for less often than this are worth keeping until then.
_SLOW_SECONDS = 2.0
_Kept = TypeVar("_Kept")


class _Slow(NamedTuple):
    body: bytes
    until: float
    state: State
    """Of the run: when it is over, everybody wants to see that."""


class Memory:
    """Remembers few pages: each thread its own as long as nothing changes, slow ones for all."""

    def __init__(self) -> None:
        self._slow: dict[str, _Slow] = {}

    def page(self, desk: Desk, ask: Ask, key: str, make: Callable[[], Page]) -> bytes:
        """Give a page, and make it only if it must be."""
        # Times on it are of the same second.
        now = (desk.store.data_version(), int(ask.now))
        known = desk.memory.get(key)
        if known is not None and known[0] == now:
            return known[1]
        slow = self._slow.get(key)
        if slow is not None and ask.now < slow.until and _state(desk, ask) is slow.state:
            return slow.body
        page = make()
        body = whole(page, ask, str(desk.store.folder)).encode()
        if len(body) <= _MOST_BYTES:
            if page.changes and page.interval > _SLOW_SECONDS:
                kept = _Slow(body, ask.now + page.interval, _state(desk, ask))
                _keep(self._slow, key, kept)
            else:
                _keep(desk.memory, key, (now, body))
        return body


def _state(desk: Desk, ask: Ask) -> State:
    return desk.store.run(ask.run).state


def _keep(memory: dict[str, _Kept], key: str, what: _Kept) -> None:
    memory[key] = what
    # Other threads may do the same at the same time.
    for old in list(memory)[:-_MOST_PAGES]:
        memory.pop(old, None)
