"""Notices for chats: JSON in the form that Slack, Teams and those like them take."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

from rankwise.errors import InputError
from rankwise.notify.notice import Notice
from rankwise.site.choices import WebhookChoice

_SECONDS = 20.0
# Chats refuse what is longer than a few thousand letters.
_MOST_LETTERS = 2500


def payload_of(notice: Notice, choice: WebhookChoice) -> bytes:
    """Write the message in the form of the chat."""
    forms = {"slack": _slack, "teams": _teams, "json": _json}
    return json.dumps(forms[choice.style](notice)).encode()


def post(payload: bytes, choice: WebhookChoice, secrets: Mapping[str, str]) -> None:
    """Post a message; OSError if it does not arrive or is refused.

    InputError: the address is a secret that is not in the environment, or none for the web.
    """
    url = choice.url or secrets.get(choice.url_secret, "")
    if not url:
        raise InputError(
            f"{choice.place}: no value for the secret {choice.url_secret}: "
            f"export {choice.url_secret}=..."
        )
    if not url.startswith(("https://", "http://")):
        raise InputError(f"{choice.place}: the address must begin with https://")
    request = urllib.request.Request(
        url, data=payload, headers={"Content-Type": "application/json"}, method="POST"
    )
    context = ssl.create_default_context(cafile=choice.ca or None)
    with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
        answer.read(1000)


def _body(notice: Notice) -> str:
    """Give the text; marks of the chat's own language in it mean nothing."""
    text = notice.text[:_MOST_LETTERS]
    # As a block of code; what would end the block is broken up.
    return "```\n" + text.replace("```", "` ` `") + "\n```"


def _slack(notice: Notice) -> dict[str, Any]:
    subject = notice.subject
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        subject = subject.replace(letter, written)
    body = _body(notice)
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        body = body.replace(letter, written)
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": body}}]
    return {"text": subject, "blocks": blocks}


def _teams(notice: Notice) -> dict[str, Any]:
    words = [
        {
            "type": "TextBlock",
            "text": notice.subject,
            "weight": "Bolder",
            "wrap": True,
            "color": "Good" if notice.is_good else "Attention",
        },
        {
            "type": "TextBlock",
            "text": notice.text[:_MOST_LETTERS],
            "wrap": True,
            "fontType": "Monospace",
        },
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": words,
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _json(notice: Notice) -> dict[str, Any]:
    return {
        "run": notice.run,
        "is_good": notice.is_good,
        "subject": notice.subject,
        "text": notice.text,
    }
