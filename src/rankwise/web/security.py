"""Access to the live page, checked before anything else is done.

The token opens it: a browser shows it once and has a cookie from then on. Other users of this
machine can reach the port as well, and so can other pages in the same browser: they are
told apart by the host that a request names, by where it says that it comes from, and by a word that
only our own forms have.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankwise.reports.rendering import render

# The port does not matter: another one may lead here, by ssh. Any other name may be one that an
# attacker lets point to this machine (DNS rebinding).
_HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
# Our own cookies and addresses are shorter: nothing else is looked through.
_LONGEST = 4096

RULES = (
    # The widths of some bars are attributes.
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What a browser may do with our pages: nothing from elsewhere, and no script but our own file."""
_HEADERS = {
    "Content-Security-Policy": RULES,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without any, browsers would not say where a form comes from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _secret() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The secrets of one server, new each time that it is started."""

    token: str = field(default_factory=_secret)
    """For the address that a person opens."""
    cookie: str = field(default_factory=_secret)
    """What the browser has from then on."""
    form: str = field(default_factory=_secret)
    """What our own forms send along."""
    name: str = "rankwise"
    """Of the cookie; browsers send cookies to all ports, so each server has a name of its own."""


def is_same(given: str, known: str) -> bool:
    """Compare with a secret, in the same time whatever was given."""
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


def is_here(host: str) -> bool:
    """Return whether a Host header names this machine."""
    return _HERE.fullmatch(host) is not None


def has_cookie(header: str, keys: Secrets) -> bool:
    """Return whether a Cookie header has ours."""
    # Each by itself: a broken cookie of another program must not hide ours.
    given = (each.partition("=")[::2] for each in header[:_LONGEST].split(";"))
    return any(
        name.strip() == keys.name and is_same(value.strip(), keys.cookie) for name, value in given
    )


def is_own_post(headers: Mapping[str, str]) -> bool:
    """Return whether a post comes from a page of ours, as far as its headers say."""
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    own = f"http://{headers.get('host', '')}".lower()
    return site == "same-origin" and (origin is None or origin.lower() == own)


class Guard:
    """Lets through what may pass, and gives every answer the headers that keep it safe."""

    def __init__(self, app: ASGIApp, keys: Secrets) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_safely)

    def _answer(self, scope: Scope) -> Response | None:
        """Return what is said in place of a page; None: all is well."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_here(hosts[0]):
            return _refusal("This address is not one of this page: open it as it was printed.", 421)
        query = parse_qs(scope["query_string"].decode("latin-1")[:_LONGEST])
        if scope["path"] == "/" and (given := query.get("token")):
            return self._greeting(given[0])
        if not has_cookie(headers.get("cookie", ""), self._keys):
            return _refusal(
                "This page is not open to everybody. Open the address that `rankwise serve` has "
                "printed, with its token."
            )
        if scope["method"] not in ("GET", "HEAD") and not is_own_post(headers):
            return _refusal("This was not sent by a page of rankwise.")
        return None

    def _greeting(self, token: str) -> Response:
        """Return the cookie to who knows the token, and have the browser forget the address.

        The browser goes on from a page of ours: after an ordinary redirect it would not send a
        strict cookie along if a link elsewhere has led here.
        """
        if not is_same(token, self._keys.token):
            return _refusal("The token is wrong. `rankwise serve` prints a new one at every start.")
        answer = HTMLResponse(
            render("web/door", words=""), headers={"Referrer-Policy": "no-referrer"}
        )
        answer.set_cookie(self._keys.name, self._keys.cookie, httponly=True, samesite="strict")
        return answer


def _refusal(words: str, status: int = 403) -> Response:
    return HTMLResponse(render("web/door", words=words), status_code=status)
