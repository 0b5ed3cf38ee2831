"""What a rank does from the end of the collection to the end of the run: as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from rankwise.testing.crew.rank import Rank
from rankwise.testing.listing import number_groups
from rankwise.testing.results import RankResult, pack
from rankwise.testing.wire import Channel, Header

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from rankwise.testing.reporter import Reporter


class Loop:
    """Follows the switchboard's orders on one rank; with a reporter, it also reports."""

    def __init__(
        self,
        session: pytest.Session,
        rank: Rank,
        channel: Channel,
        reporter: Reporter | None,
        *,
        at_once: bool = False,
    ) -> None:
        self._session = session
        # Whether each test's end is told before the next one begins: then what was done stays done
        # if this process dies.
        self._at_once = at_once
        self._rank = rank
        self._channel = channel
        self._reporter = reporter
        self._items: Sequence[pytest.Item] = session.items
        self._nodes: Sequence[Node] = ()

    def index_of(self, item: pytest.Item) -> int:
        """Give the number of a test."""
        return self._items.index(item)

    def tell_of_failure(self, index: int, result: RankResult) -> None:
        """Say that a test has failed here, though its teardown is yet to come."""
        text = "\n".join(report.longreprtext for report in result.reports if report.failed)
        header = {"kind": "stumbled", "case": index, "text": text}
        self._channel.send(header, pack(result, self._session.config))

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
                    if header.get("venue") == "fresh":
                        return
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
        venue = header.get("venue", "shared")
        over = self._last_users(cases, header["close"])
        try:
            for index in cases:
                item = self._items[index]
                if self._reporter is not None and index == cases[0]:
                    # Of the others in a row, those before have yet to be reported.
                    self._reporter.starts(item, ranks)
                closing = item.listchain()[:-1] if venue == "fresh" else over.get(index, ())
                result = self._rank.run(
                    item, index, ranks, closing, keep=header["keep"], alone=venue != "shared"
                )
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
        self._channel.put(header, body, at_once=self._at_once or result.failed or stop)
        return leave

    def _send_late(self, late: list[tuple[pytest.Item, RankResult]]) -> None:
        """Report fixtures that failed when their module or session was over."""
        for item, result in late:
            if self._reporter is not None:
                self._reporter.log_late(result, 0)
            else:
                index = self.index_of(item)
                header = {"kind": "late", "case": index}
                self._channel.send(header, pack(result, self._session.config))
