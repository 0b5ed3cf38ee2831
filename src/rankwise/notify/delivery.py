"""Send notices by mail and webhook, and keep those that could not be sent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import smtplib
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, make_msgid
from functools import partial
from http.client import HTTPException
from pathlib import Path
from smtplib import SMTPException
from typing import Protocol

from rankwise.documents.site import find_site
from rankwise.documents.site_models import MailConfig, NotifierConfig, NotifyConfig, WebhookConfig
from rankwise.errors import InputError, RankwiseError
from rankwise.node.files import lock, write_file
from rankwise.notify.message import Notice, notice_of
from rankwise.plugins import NOTIFIERS
from rankwise.reports.model import ReportData
from rankwise.reports.rendering import render

# A server that takes longer is tried again later, from the outbox.
_SECONDS = 20.0
# Chats refuse what is longer than a few thousand letters.
_MOST_LETTERS = 2500


class Notifier(Protocol):
    """One way to send notices. It is made from its table in rankwise.toml."""

    @property
    def wants_files(self) -> bool:
        """Whether notices have plots and the report as PDF, which take a second to make."""

    def write(self, notice: Notice) -> bytes:
        """Return the message, which is kept in the outbox until it is sent."""

    def send(self, message: bytes, secrets: Mapping[str, str]) -> None:
        """Send a message, now or in a later process; raise if it has not arrived.

        `secrets` are variables. A value whose name is in a key that ends in `_secret` is never
        written down, also not as a part of what is raised.
        """


def notifier_of(config: NotifyConfig) -> Notifier:
    """Make the notifier of a table, ours or another package's; InputError: it cannot be had."""
    try:
        make: Callable[[NotifyConfig], Notifier] = NOTIFIERS.load(config.kind)
    except ImportError as error:
        raise InputError(f"{config.place}: {error}") from error
    try:
        return make(config)
    except Exception as error:
        if config.kind in NOTIFIERS.ours:
            raise
        # Whatever the code of another package raises is the fault of that package.
        raise InputError(f"{config.place}: {type(error).__name__}: {error}") from error


def _secret(config: MailConfig | WebhookConfig, name: str, secrets: Mapping[str, str]) -> str:
    """Return the value of a secret; InputError if it has none."""
    if value := secrets.get(name, ""):
        return value
    raise InputError(f"{config.place}: no value for the secret {name}: export {name}=...")


@dataclass(frozen=True, slots=True)
class MailNotifier:
    """Sends mail: text and HTML with the plots in it, and the PDF attached."""

    config: MailConfig
    wants_files = True

    def write(self, notice: Notice) -> bytes:
        """Write the mail."""
        choice = self.config
        letter = EmailMessage(policy=SMTP)
        letter["Subject"] = notice.subject
        letter["From"] = choice.sender
        letter["To"] = ", ".join(choice.to)
        letter["Date"] = format_datetime(localtime())
        letter["Message-ID"] = make_msgid(domain=choice.sender.rpartition("@")[2].rstrip(">"))
        # People's absence notes need no answer to a machine.
        letter["Auto-Submitted"] = "auto-generated"
        letter.set_content(notice.text)
        letter.add_alternative(str(notice.page), subtype="html")
        page = letter.get_payload()[-1]  # type: ignore[index]  # a list, since there are two parts
        assert isinstance(page, EmailMessage)
        for number, plot in enumerate(notice.plots):
            page.add_related(
                plot.png,
                maintype="image",
                subtype="png",
                cid=f"<plot{number}>",
                filename=f"plot-{number + 1}.png",
                disposition="inline",
            )
        if notice.pdf is not None:
            letter.add_attachment(
                notice.pdf, maintype="application", subtype="pdf", filename=f"{notice.run}.pdf"
            )
        if notice.csv:
            letter.add_attachment(notice.csv, subtype="csv", filename=f"{notice.run}.csv")
        return letter.as_bytes()

    def send(self, message: bytes, secrets: Mapping[str, str]) -> None:
        """Hand a mail to the server; OSError or smtplib's errors if it does not take it."""
        choice, password = self.config, ""
        if choice.password_secret:
            password = _secret(choice, choice.password_secret, secrets)
        context = ssl.create_default_context(cafile=choice.ca or None)
        if choice.security == "tls":
            connect: Callable[..., smtplib.SMTP] = partial(smtplib.SMTP_SSL, context=context)
        else:
            connect = smtplib.SMTP
        with connect(choice.host, choice.port, timeout=_SECONDS) as server:
            if choice.security == "starttls":
                # Raises if the server does not offer it: nothing is said in the clear.
                server.starttls(context=context)
            if choice.user:
                server.login(choice.user, password)
            refused = server.sendmail(choice.sender, list(choice.to), message)
        # It raises only if all are refused; a single one without its mail is a failure, too.
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)


@dataclass(frozen=True, slots=True)
class WebhookNotifier:
    """Posts a message into a chat, in the form that the chat takes."""

    config: WebhookConfig
    wants_files = False

    def write(self, notice: Notice) -> bytes:
        """Write the message."""
        form = f"notify/{self.config.style}.json"
        return render(form, notice=notice, most=_MOST_LETTERS).encode()

    def send(self, message: bytes, secrets: Mapping[str, str]) -> None:
        """Post a message; OSError if it does not arrive or is refused."""
        choice = self.config
        # A newline behind it is from a file that it was read from.
        url = (choice.url or _secret(choice, choice.url_secret, secrets)).strip()
        if not url.startswith(("https://", "http://")):
            raise InputError(f"{choice.place}: the address must begin with https://")
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data=message, headers=headers, method="POST")
        context = ssl.create_default_context(cafile=choice.ca or None)
        with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
            answer.read(1000)


FOLDER = "outbox"
_ABOUT, _BODY = ".json", ".message"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """One message that has not arrived yet."""

    name: str
    """Of its files."""
    target: str
    """The name of the table in the site file that says where it goes."""
    run: str
    folder: str
    """From which the site file is found."""
    created: float
    tries: int = 0
    trouble: str = ""
    """What went wrong the last time."""


class Outbox:
    """The messages of one store."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER

    def add(self, target: str, run: str, folder: str, body: bytes) -> OutboxMessage:
        """Keep a message, before the first try to send it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Messages quote logs, which other users of this machine need not see.
        self._folder.chmod(0o700)
        now = time.time()
        # Sorted by name, messages are in the order in which they were written.
        name = f"{time.time_ns()}-{os.getpid()}"
        one = OutboxMessage(name=name, target=target, run=run, folder=folder, created=now)
        # The body first: without its description a message is not found, and not sent in part.
        write_file(self._folder / f"{name}{_BODY}", body)
        self.note(one)
        return one

    def note(self, one: OutboxMessage) -> None:
        """Write down how it stands with a message."""
        write_file(self._folder / f"{one.name}{_ABOUT}", json.dumps(asdict(one)))

    def body(self, one: OutboxMessage) -> bytes:
        """Return the message itself."""
        return (self._folder / f"{one.name}{_BODY}").read_bytes()

    def remove(self, one: OutboxMessage) -> None:
        """Forget a message."""
        for ending in (_ABOUT, _BODY):
            (self._folder / f"{one.name}{ending}").unlink(missing_ok=True)

    def waiting(self) -> list[OutboxMessage]:
        """Return the messages that wait, the oldest first; what cannot be read is left alone."""
        found = []
        with contextlib.suppress(OSError):
            # Their names begin with the time.
            for file in sorted(self._folder.glob(f"*{_ABOUT}")):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    found.append(OutboxMessage(**json.loads(file.read_bytes())))
        return found

    @contextlib.contextmanager
    def claimed(self, one: OutboxMessage) -> Iterator[bool]:
        """Return whether a message is ours to send, and keep it so: it must not be sent twice.

        It is not if another process is at it, or it is gone.
        """
        is_ours = False
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = stack.enter_context((self._folder / f"{one.name}{_BODY}").open("rb"))
                # The process that had it before us may have sent and removed it meanwhile.
                is_ours = lock(file.fileno(), waits=False) and os.fstat(file.fileno()).st_nlink > 0
            yield is_ours


Say = Callable[[str], None]

PAUSES = (0.5, 2.0)
"""Seconds between one try and the next."""
# Older ones are given up: the news of last week is no news.
_OLDEST_SECONDS = 7 * 86400.0
_CODE_OF_REFUSAL = 500


def notify(data: ReportData, names: Sequence[str], *, say: Say) -> bool:
    """Send what became of a run to names of the site file; return whether all have it.

    InputError: the site file does not know one of them.
    """
    folder = Path(data.run.source).parent if data.run.source else Path.cwd()
    configs = [find_site(folder).notify(name) for name in names]
    notice = notice_of(data, with_files=any(map(_wants_files, configs)))
    return deliver(notice, names, Outbox(data.store.folder), folder=folder, say=say)


def _wants_files(config: NotifyConfig) -> bool:
    try:
        return notifier_of(config).wants_files
    except InputError:
        return False  # It is said when it is to write, and keeps no other from that.


def deliver(
    notice: Notice,
    targets: Iterable[str],
    outbox: Outbox,
    *,
    folder: Path,
    say: Say,
    secrets: Mapping[str, str] = os.environ,
    pauses: Sequence[float] = PAUSES,
) -> bool:
    """Send a notice to targets of the site file; tells whether all have it.

    It is in the outbox before the first try, and stays there until it has arrived.
    """
    if notice.lacks:
        say(f"no plots and no PDF: {notice.lacks}")
    have_all = True
    for name in targets:
        try:
            choice = find_site(folder).notify(name)
            if choice.when == "failed" and notice.is_good:
                continue
            written = _written(notice, notifier_of(choice))
            one = outbox.add(name, notice.run, str(folder), written)
        except (RankwiseError, OSError) as error:
            # One that cannot be told keeps no other from being told.
            say(f"{name} was not told: {error}")
            have_all = False
            continue
        have_all &= _send(one, choice, outbox, say=say, secrets=secrets, pauses=pauses)
    return have_all


def retry(outbox: Outbox, *, say: Say, secrets: Mapping[str, str] = os.environ) -> bool:
    """Try again what waits in the outbox, each message once; tells whether it is empty now."""
    is_empty = True
    for one in outbox.waiting():
        if time.time() - one.created > _OLDEST_SECONDS:
            say(f"{one.target} was not notified of {one.run} for a week: the message is dropped")
            outbox.remove(one)
            continue
        try:
            choice = find_site(Path(one.folder)).notify(one.target)
        except RankwiseError as error:
            say(f"{one.target} was not notified of {one.run}: {error}")
            is_empty = False
            continue
        is_empty &= _send(one, choice, outbox, say=say, secrets=secrets)
    return is_empty


def _written(notice: Notice, notifier: Notifier) -> bytes:
    try:
        return notifier.write(notice)
    except Exception as error:  # It may be another package's.
        raise InputError(f"no message could be written: {_in_words(error)}") from error


def _send(
    one: OutboxMessage,
    choice: NotifyConfig,
    outbox: Outbox,
    *,
    say: Say,
    secrets: Mapping[str, str],
    pauses: Sequence[float] = (),
) -> bool:
    """Send one message, again after each pause; what does not arrive stays in the outbox."""
    with outbox.claimed(one) as is_ours:
        if not is_ours:
            say(f"another process is sending {one.run} to {one.target}")
            return False
        # None stands for the last try.
        for pause in (*pauses, None):
            try:
                notifier_of(choice).send(outbox.body(one), secrets)
            except Exception as error:  # The notifier may be another package's.
                trouble = _without_secrets(_in_words(error), choice, secrets)
                one = dataclasses.replace(one, tries=one.tries + 1, trouble=trouble)
                outbox.note(one)
                if pause is None or _is_final(error):
                    break
                time.sleep(pause)
            else:
                outbox.remove(one)
                say(f"{one.target} was notified of {one.run}")
                return True
    say(
        f"{one.target} was not notified of {one.run} ({one.trouble}); the message is in the "
        "outbox: the next run tries again, or  rankwise notify --retry"
    )
    return False


def _is_final(error: Exception) -> bool:
    """Return whether the same would happen a second later, too."""
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= _CODE_OF_REFUSAL
    return isinstance(error, InputError | UnicodeError | smtplib.SMTPNotSupportedError)


def _in_words(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return f"the server said {error.smtp_code} {text}"
    if isinstance(error, OSError | SMTPException | HTTPException | UnicodeError | RankwiseError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


def _without_secrets(trouble: str, choice: NotifyConfig, secrets: Mapping[str, str]) -> str:
    """Keep passwords, and where a webhook is, out of what is written down of a failure."""
    # Late: it is needed for a failure only.
    from rankwise.node.output import Redactor

    given = choice.settings if isinstance(choice, NotifierConfig) else dataclasses.asdict(choice)
    names = [str(value) for key, value in given.items() if key.endswith("_secret")]
    values = [secrets.get(name, "").strip() for name in names]
    # Errors may name all of an address, or what comes after the host.
    values += [value.partition("://")[2].partition("/")[2] for value in values]
    return Redactor(values).clean(trouble)[:300]
