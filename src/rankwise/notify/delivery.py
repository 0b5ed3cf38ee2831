"""Brings notices to where they go: tries again with patience, then keeps them and says so."""

from __future__ import annotations

import dataclasses
import os
import smtplib
import time
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from smtplib import SMTPException

from rankwise.errors import InputError, RankwiseError
from rankwise.notify.mail import letter_of, send
from rankwise.notify.notice import Notice
from rankwise.notify.outbox import Outbox, Waiting
from rankwise.notify.webhook import payload_of, post
from rankwise.site import find_site
from rankwise.site.choices import MailChoice, WebhookChoice

Say = Callable[[str], None]

PAUSES = (0.5, 2.0)
"""Seconds between one try and the next."""
# Older ones are given up: nobody waits for the news of last week.
_OLDEST_SECONDS = 7 * 86400.0
_CODE_OF_REFUSAL = 500


def deliver(
    notice: Notice,
    targets: Iterable[str],
    outbox: Outbox,
    *,
    folder: Path,
    say: Say,
    secrets: Mapping[str, str] = os.environ,
    pauses: Iterable[float] = PAUSES,
) -> bool:
    """Send a notice to targets of the site file; tells whether all have it.

    It is in the outbox before the first try, and stays there until it has arrived.
    """
    if notice.lacks:
        say(f"no plots and no PDF: {notice.lacks}")
    waits = tuple(pauses)
    have_all = True
    for name in targets:
        try:
            choice = find_site(folder).notify(name)
            if choice.when == "failed" and notice.is_good:
                continue
            written = _written(notice, choice)
            one = outbox.add(name, notice.run, str(folder), written)
        except (RankwiseError, OSError) as error:
            say(f"{name} was not told: {error}")
            have_all = False
            continue
        have_all &= _send(one, choice, outbox, say=say, secrets=secrets, pauses=waits)
    return have_all


def retry(outbox: Outbox, *, say: Say, secrets: Mapping[str, str] = os.environ) -> bool:
    """Try again what waits in the outbox, each message once; tells whether it is empty now."""
    is_empty = True
    for one in outbox.waiting():
        if time.time() - one.created > _OLDEST_SECONDS:
            say(f"{one.target} was not told of {one.run} in a week, and is not any more")
            outbox.remove(one)
            continue
        try:
            choice = find_site(Path(one.folder)).notify(one.target)
        except RankwiseError as error:
            say(f"{one.target} was not told of {one.run}: {error}")
            is_empty = False
            continue
        is_empty &= _send(one, choice, outbox, say=say, secrets=secrets, pauses=())
    return is_empty


def _written(notice: Notice, choice: MailChoice | WebhookChoice) -> bytes:
    if isinstance(choice, MailChoice):
        return letter_of(notice, choice)
    return payload_of(notice, choice)


def _send(
    one: Waiting,
    choice: MailChoice | WebhookChoice,
    outbox: Outbox,
    *,
    say: Say,
    secrets: Mapping[str, str],
    pauses: Iterable[float],
) -> bool:
    """Send one message, unless somebody else is at it."""
    with outbox.claimed(one) as is_ours:
        if not is_ours:
            say(f"somebody else is telling {one.target} of {one.run}")
            return False
        return _try(one, choice, outbox, say=say, secrets=secrets, pauses=pauses)


def _try(
    one: Waiting,
    choice: MailChoice | WebhookChoice,
    outbox: Outbox,
    *,
    say: Say,
    secrets: Mapping[str, str],
    pauses: Iterable[float],
) -> bool:
    """Send one message, again after each pause; what does not arrive stays in the outbox."""
    waits = list(pauses)
    while True:
        try:
            body = outbox.body(one)
            if isinstance(choice, MailChoice):
                send(body, choice, secrets)
            else:
                post(body, choice, secrets)
        except (OSError, SMTPException, HTTPException, UnicodeError, InputError) as error:
            one = dataclasses.replace(one, tries=one.tries + 1, trouble=_in_words(error))
            outbox.note(one)
            if waits and not _is_final(error):
                time.sleep(waits.pop(0))
                continue
            say(
                f"{one.target} was not told of {one.run} ({one.trouble}); it waits in the outbox: "
                "the next run tries again, or  rankwise notify --retry"
            )
            return False
        outbox.remove(one)
        say(f"{one.target} was told of {one.run}")
        return True


def _is_final(error: Exception) -> bool:
    """Tell whether the same would happen a second later, too."""
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= _CODE_OF_REFUSAL
    return isinstance(error, InputError | UnicodeError | smtplib.SMTPNotSupportedError)


def _in_words(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return f"the server said {error.smtp_code} {text}"[:300]
    return (str(error) or type(error).__name__)[:300]
