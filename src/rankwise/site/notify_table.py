"""`[notify.NAME]` of a site file: whom to tell, by mail or into a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.site.choices import MailChoice, WebhookChoice
from rankwise.site.page import Key, Page, did_you_mean
from rankwise.site.values import from_file, read_number, read_text, read_words, written

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_STYLES = ("slack", "teams", "json")
_WHEN = ("always", "failed")
_MAIL_KEYS = (*("host", "port", "security", "user", "password_secret", "from", "to", "ca", "when"),)
_WEBHOOK_KEYS = ("url", "url_secret", "style", "ca", "when")
_HERE = ("localhost", "127.0.0.1", "::1")


def read_notify(name: str, table: Mapping[str, Any], page: Page) -> MailChoice | WebhookChoice:
    """Read `[notify.NAME]`: with `host` it is mail, with `url` or `url_secret` a webhook."""
    at = ("notify", name)
    if "url" in table or "url_secret" in table:
        return _webhook(at, table, page)
    if "host" not in table:
        page.complain(
            at, f"[{page.header(at)}] must have a host, for mail, or a url or url_secret, for chats"
        )
        return MailChoice(name=name, place=page.place(at))
    return _mail(at, table, page)


def _mail(at: Key, table: Mapping[str, Any], page: Page) -> MailChoice:
    page.complain_of_unknown(at, table, _MAIL_KEYS)
    security = _one_of((*at, "security"), table, page, tuple(_PORTS))
    port = read_number((*at, "port"), table, page, least=1, is_whole=True)
    choice = MailChoice(
        name=at[-1],
        host=read_text((*at, "host"), table, page),
        port=int(port) if port is not None else _PORTS[security],
        security=security,
        user=_text((*at, "user"), table, page),
        password_secret=_text((*at, "password_secret"), table, page),
        sender=_addresses((*at, "from"), table, page, most=1)[0],
        to=_addresses((*at, "to"), table, page),
        ca=from_file(ca, page) if (ca := _text((*at, "ca"), table, page)) else "",
        when=_one_of((*at, "when"), table, page, _WHEN),
        place=page.place(at),
    )
    if bool(choice.user) != bool(choice.password_secret):
        page.complain(at, "user and password_secret go together")
    if choice.user and security == "none" and choice.host not in _HERE:
        page.complain((*at, "security"), "without security, the password could be read on its way")
    return choice


def _webhook(at: Key, table: Mapping[str, Any], page: Page) -> WebhookChoice:
    page.complain_of_unknown(at, table, _WEBHOOK_KEYS)
    if "url" in table and "url_secret" in table:
        page.complain(at, "url and url_secret are two ways to say the same: take one")
    url = _text((*at, "url"), table, page)
    if url and not url.startswith(("https://", "http://")):
        page.complain((*at, "url"), f"{written(url)} must begin with https://")
    return WebhookChoice(
        name=at[-1],
        url=url,
        url_secret=_text((*at, "url_secret"), table, page),
        style=_one_of((*at, "style"), table, page, _STYLES),
        ca=from_file(ca, page) if (ca := _text((*at, "ca"), table, page)) else "",
        when=_one_of((*at, "when"), table, page, _WHEN),
        place=page.place(at),
    )


def _text(at: Key, table: Mapping[str, Any], page: Page) -> str:
    return read_text(at, table, page) if at[-1] in table else ""


def _one_of(at: Key, table: Mapping[str, Any], page: Page, known: Sequence[str]) -> str:
    """Read one of some words; the first is taken if none is given."""
    value = table.get(at[-1], known[0])
    if value in known:
        return str(value)
    hint = did_you_mean(str(value), known) or f"; there are {', '.join(known)}"
    page.complain(at, f"{written(value)} is no {at[-1]}{hint}")
    return known[0]


def _addresses(
    at: Key, table: Mapping[str, Any], page: Page, *, most: int | None = None
) -> tuple[str, ...]:
    found = read_words(at, table, page)
    wrong = [one for one in found if "@" not in one or any(ord(a) < 32 for a in one)]
    if not found or wrong or (most is not None and len(found) > most):
        what = "an address" if most == 1 else "addresses"
        page.complain(at, f'{at[-1]} must be {what}, such as "me@example.org"')
        return ("",)
    return found
