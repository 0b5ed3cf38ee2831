"""What a rank does from the end of the collection to the end of the run: as it is told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from rankwise.testing.crew.rank import Rank
from rankwise.testing.results import RankResult, pack, pack_any_report
from rankwise.testing.wire import Channel, Header

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from rankwise.testing.reporter import Reporter


def describe_collection(
    session: pytest.Session, errors: Sequence[pytest.CollectReport]
) -> tuple[Header, bytes]:
    """Say what this rank has collected, for the reporter to compare."""
    nodeids = [item.nodeid for item in session.items]
    digest = hashlib.sha256("\n".join(nodeids).encode(errors="replace")).hexdigest()
    body = {
        "nodeids": nodeids,
        "errors": [pack_any_report(error, session.config) for error in errors],
    }
    header = {"kind": "collected", "digest": digest}
    return header, json.dumps(body, default=repr).encode()


class Loop:
    """Follows the switchboard's orders on one rank; with a reporter, it also reports."""

    def __init__(
        self, session: pytest.Session, rank: Rank, channel: Channel, reporter: Reporter | None
    ) -> None:
        self._session = session
        self._rank = rank
        self._channel = channel
        self._reporter = reporter
        self._items: Sequence[pytest.Item] = session.items
        self._nodes: Sequence[Node] = ()

    def adopt(self, nodeids: Sequence[str]) -> None:
        """Number the tests as the reporter does, whatever order this rank has collected them in."""
        waiting: dict[str, list[pytest.Item]] = {}
        for item in self._session.items:
            waiting.setdefault(item.nodeid, []).append(item)
        self._items = [waiting[nodeid].pop(0) for nodeid in nodeids]
        self._session.items[:] = self._items

    def run(self) -> None:
        """Work until the switchboard says that the run is over."""
        _, self._nodes = number_groups(self._items)
        while True:
            header, body = self._channel.receive()
            match header["kind"]:
                case "run":
                    self._run_row(header)
                case "close":
                    self._send_late(self._rank.close(self._nodes[g] for g in header["groups"]))
                case "finish":
                    self._send_late(self._rank.close_all())
                    return
                case _:
                    assert self._reporter is not None, f"rank got {header['kind']!r}"
                    self._reporter.take(header, body)

    def _run_row(self, header: Header) -> None:
        cases, ranks = header["cases"], header["ranks"]
        over = self._last_users(cases, header["close"])
        try:
            for index in cases:
                item = self._items[index]
                if self._reporter is not None and index == cases[0]:
                    # Of the others in a row, those before have yet to be reported.
                    self._reporter.starts(item, ranks)
                result = self._rank.run(item, ranks, over.get(index, ()), keep=header["keep"])
                if self._send_done(index, ranks, result):
                    return
        finally:
            self._channel.flush()

    def _last_users(self, cases: Sequence[int], groups: Sequence[int]) -> dict[int, list[Node]]:
        """Find the collectors that end with each test of a row."""
        closing = {self._nodes[group] for group in groups}
        if not closing:
            return {}
        last = {
            node: index
            for index in cases
            for node in self._items[index].listchain()
            if node in closing
        }
        over: dict[int, list[Node]] = {}
        for node, index in last.items():
            over.setdefault(index, []).append(node)
        return over

    def _send_done(self, index: int, ranks: Sequence[int], result: RankResult) -> bool:
        """Say what came of a test; gives whether this rank stops here."""
        stop = bool(self._session.shouldfail or self._session.shouldstop)
        leave = stop and len(ranks) == 1
        header = {
            "kind": "done",
            "case": index,
            "failed": result.failed,
            "seconds": round(result.seconds, 6),
        }
        if stop:
            header |= {"stop": True, "leave": leave}
        body = b""
        if self._reporter is None:
            body = pack(result, self._session.config)
        else:
            self._reporter.keep(index, ranks, result)
        # Nobody waits for a test in the middle of a row, unless it has failed.
        self._channel.put(header, body, at_once=result.failed or stop)
        return leave

    def _send_late(self, late: list[tuple[pytest.Item, RankResult]]) -> None:
        """Report fixtures that failed when their module or session was over."""
        for item, result in late:
            if self._reporter is not None:
                self._reporter.log_late(item, result, None)
            else:
                index = self._items.index(item)
                header = {"kind": "late", "case": index}
                self._channel.send(header, pack(result, self._session.config))


def number_groups(items: Sequence[pytest.Item]) -> tuple[list[list[int]], list[Node]]:
    """Number the collectors below the session; the same on every rank, as the tests are.

    Gives for each test the numbers of the collectors it belongs to, and the collectors by number.
    """
    numbers: dict[Node, int] = {}
    groups = []
    for item in items:
        chain = item.listchain()[1:-1]
        groups.append([numbers.setdefault(node, len(numbers)) for node in chain])
    return groups, list(numbers)
