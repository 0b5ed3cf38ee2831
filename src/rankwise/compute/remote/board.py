"""What those who keep machines tell the compute that they belong to."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from rankwise.compute.contract import Attempt, Job, News
from rankwise.records import AttemptEnd


@dataclass(slots=True)
class Board:
    """Written by threads, read by one."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: list[tuple[Attempt, AttemptEnd | None]] = field(default_factory=list)
    _news: list[News] = field(default_factory=list)
    _returned: list[tuple[Job, str]] = field(default_factory=list)
    _unseen: set[str] = field(default_factory=set)

    def end(self, attempt: Attempt, end: AttemptEnd | None = None) -> None:
        """Say that an attempt is over; without an end, its runner has written it."""
        with self.changed:
            self._unseen.discard(attempt.marker)
            self._ended.append((attempt, end))
            self.changed.notify_all()

    def tell(self, news: News) -> None:
        with self.changed:
            self._news.append(news)
            self.changed.notify_all()

    def give_back(self, job: Job, reason: str) -> None:
        """Say that a machine cannot take a job, of which nothing has begun."""
        with self.changed:
            self._returned.append((job, reason))
            self.changed.notify_all()

    def expect(self, attempt: Attempt) -> None:
        """Have those who wait know that nobody has looked at an attempt yet."""
        with self.changed:
            self._unseen.add(attempt.marker)

    def seen(self, attempt: Attempt) -> None:
        """Say that an attempt was looked at, or cannot be now."""
        with self.changed:
            self._unseen.discard(attempt.marker)
            self.changed.notify_all()

    def has_unseen(self) -> bool:
        with self.changed:
            return bool(self._unseen)

    def take_ended(self) -> list[tuple[Attempt, AttemptEnd | None]]:
        with self.changed:
            taken, self._ended = self._ended, []
        return taken

    def take_news(self) -> list[News]:
        with self.changed:
            taken, self._news = self._news, []
        return taken

    def take_returned(self) -> list[tuple[Job, str]]:
        with self.changed:
            taken, self._returned = self._returned, []
        return taken

    def wait(self, seconds: float) -> None:
        """Wait until there is something, or for so long."""
        with self.changed:
            if not (self._ended or self._returned):
                self.changed.wait(seconds)
