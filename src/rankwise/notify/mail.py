"""Notices as mail: written as a file that can wait, and sent over SMTP."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, make_msgid

from rankwise.errors import InputError
from rankwise.notify.notice import Notice
from rankwise.site.choices import MailChoice

_SECONDS = 20.0


def letter_of(notice: Notice, choice: MailChoice) -> bytes:
    """Write the mail: text and HTML with the plots in it, and the PDF attached."""
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
    for number, picture in enumerate(notice.pictures):
        page.add_related(
            picture.png,
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
    return letter.as_bytes()


def send(letter: bytes, choice: MailChoice, secrets: Mapping[str, str]) -> None:
    """Hand a mail to the server; OSError or smtplib's errors if it does not take it.

    InputError: the password is not in the environment.
    """
    password = ""
    if choice.password_secret:
        password = secrets.get(choice.password_secret, "")
        if not password:
            raise InputError(
                f"{choice.place}: no value for the secret {choice.password_secret}: "
                f"export {choice.password_secret}=..."
            )
    context = ssl.create_default_context(cafile=choice.ca or None)
    with _connected(choice, context) as server:
        if choice.security == "starttls":
            # Raises if the server does not offer it: nothing is said in the clear.
            server.starttls(context=context)
        if choice.user:
            server.login(choice.user, password)
        refused = server.sendmail(choice.sender, list(choice.to), letter)
    if refused:
        raise smtplib.SMTPRecipientsRefused(refused)


def _connected(choice: MailChoice, context: ssl.SSLContext) -> smtplib.SMTP:
    if choice.security == "tls":
        return smtplib.SMTP_SSL(choice.host, choice.port, timeout=_SECONDS, context=context)
    return smtplib.SMTP(choice.host, choice.port, timeout=_SECONDS)
