"""Rank 0's other task under mpirun: it reports for all ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rankwise.testing.limits import grace_from, limit_from, limit_of
from rankwise.testing.listing import number_groups
from rankwise.testing.naming import describe_ranks
from rankwise.testing.reporter import Reporter
from rankwise.testing.results import unpack_any_report
from rankwise.testing.sizes import size_of
from rankwise.testing.wire import Channel, Header, WireError

_SHOWN_DIFFERENCES = 10
# Ranks that have nothing left to do need no longer than this to say goodbye.
_GOODBYE_SECONDS = 10.0


class CollectionsDiffer(Exception):
    """The ranks have not collected the same tests; the message shows the difference."""


class ReportingRank(Reporter):
    """Collects what the ranks say through the switchboard."""

    def __init__(
        self, session: pytest.Session, channel: Channel, *, size: int, in_order: bool
    ) -> None:
        super().__init__(session, channel.send, session.items, size=size, rank=0, in_order=in_order)
        self._channel = channel
        self._broken: set[str] = set()

    # Before the first test

    def gather_collections(self) -> dict[int, tuple[Header, bytes]]:
        """Wait until every rank has said what it has collected.

        Raises WireError when a rank has left instead, UsageError when it refused to collect.
        """
        collections: dict[int, tuple[Header, bytes]] = {}
        while len(collections) < self._size:
            header, body = self._channel.receive()
            if header["kind"] == "collected":
                collections[header["rank"]] = header, body
            elif header["kind"] == "interrupt":
                self.take(header, body)
            elif header["kind"] == "refused":
                where = describe_ranks([header["rank"]], self._size)
                raise pytest.UsageError(f"[{where}] {header['reason']}")
            elif header["kind"] == "gone":
                self._gone.add(header["rank"])
                raise WireError(
                    f"rank {header['rank']} ended before it had collected its tests; "
                    f"what it printed says why"
                )
        return collections

    def log_collection_errors(self, collections: Mapping[int, tuple[Header, bytes]]) -> None:
        """Report what could not be collected on other ranks and is not known from this one."""
        found: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for rank, (_, body) in sorted(collections.items()):
            for data in json.loads(body)["errors"]:
                found.setdefault(data["nodeid"], (data, []))[1].append(rank)
        self._broken = set(found)
        for data, ranks in found.values():
            if 0 not in ranks:
                report = unpack_any_report(data, self._config)
                report.nodeid = f"{report.nodeid} [{describe_ranks(ranks, self._size)}]"
                self._config.hook.pytest_collectreport(report=report)

    def agree_on_order(
        self, collections: Mapping[int, tuple[Header, bytes]], temporary: str
    ) -> None:
        """Make sure that all ranks have the same tests, and tell them in which order to count.

        Tests of a module that some rank could not collect are left out. Raises CollectionsDiffer.
        """
        digest = collections[0][0]["digest"]
        items = self._session.items
        if self._broken:
            items[:] = [item for item in items if not self._is_broken(item.nodeid)]
        own = [item.nodeid for item in items]
        same = not self._broken
        for rank, (header, body) in sorted(collections.items()):
            if self._broken or header["digest"] != digest:
                theirs = [n for n in json.loads(body)["nodeids"] if not self._is_broken(n)]
                if sorted(theirs) != sorted(own):
                    raise CollectionsDiffer(show_difference(0, own, rank, theirs, self._size))
                same = False
        order = b"" if same else json.dumps(own).encode()
        header = {"kind": "share", "what": "order", "temporary": temporary}
        self._channel.send(header, order)

    def _is_broken(self, nodeid: str) -> bool:
        return any(nodeid.startswith((f"{broken}::", f"{broken}/")) for broken in self._broken)

    def begin(self, scheduler: str) -> None:
        """Hand the suite over to the switchboard."""
        items = self._session.items
        known = self.known_durations()
        limit = limit_from(self._config)
        groups, _ = number_groups(items)
        tests = [
            [size_of(item), known.get(item.nodeid), numbers, limit_of(item, limit), item.nodeid]
            for item, numbers in zip(items, groups, strict=True)
        ]
        self._channel.send(
            {
                "kind": "begin",
                "scheduler": scheduler,
                "careful": self.careful,
                "strict": self.strict,
                "maxfail": self.maxfail,
                "grace": grace_from(self._config),
                "root": str(self._config.rootpath),
            },
            json.dumps(tests).encode(),
        )

    # After the last test

    def await_others(self) -> list[int]:
        """Wait until the other ranks have ended their sessions; gives those that did not."""
        missing = set(range(self._size)) - {0} - self._gone
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while missing:
            self._channel.set_timeout(max(0.01, deadline - time.monotonic()))
            try:
                header, body = self._channel.receive()
            except WireError:
                break
            if header["kind"] in ("bye", "gone"):
                missing.discard(header["rank"])
            elif header["kind"] in ("late", "verdict"):
                self.take(header, body)
        self.save_durations()
        return sorted(missing)


def show_difference(
    rank: int, own: Sequence[str], other: int, theirs: Sequence[str], size: int
) -> str:
    """Say which tests only one of two ranks has."""
    counts = f"rank {rank} {len(own)}, rank {other} {len(theirs)} (of {size} ranks)"
    lines = [f"the ranks have collected different tests: {counts}"]
    for who, here, there in ((rank, own, theirs), (other, theirs, own)):
        elsewhere = set(there)
        only = [nodeid for nodeid in here if nodeid not in elsewhere]
        lines += [f"  only on rank {who}: {nodeid}" for nodeid in only[:_SHOWN_DIFFERENCES]]
        if len(only) > _SHOWN_DIFFERENCES:
            lines.append(f"  … and {len(only) - _SHOWN_DIFFERENCES} more only on rank {who}")
    lines.append(
        "  Every rank must collect the same tests: collection must not depend on the rank, the "
        "order of a set, or chance."
    )
    return "\n".join(lines)
