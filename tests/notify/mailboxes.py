"""Real servers on the loopback: one that takes mail, and one that takes what chats are sent."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "robot", "not-a-real-password"


@dataclass(kw_only=True)
class Mailbox:
    """What a server has taken."""

    port: int
    letters: list[EmailMessage] = field(default_factory=list)
    was_encrypted: list[bool] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Take a mail, as aiosmtpd asks for it."""
        assert isinstance(envelope.content, bytes)
        letter = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(letter, EmailMessage)
        self.letters.append(letter)
        self.was_encrypted.append(session.ssl is not None)
        return "250 taken"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine that is trusted only where it is named."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    line += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    line += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    return certificate, key


def free_port() -> int:
    """Find a port that no process listens on."""
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@contextmanager
def mail_server(
    certificate: tuple[Path, Path] | None = None, *, port: int | None = None
) -> Iterator[Mailbox]:
    """Start a server for mail; with a certificate it wants STARTTLS, a name and a password."""
    mailbox = Mailbox(port=port or free_port())
    options: dict[str, Any] = {}
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        options = {
            "tls_context": context,
            "require_starttls": True,
            "auth_required": True,
            "authenticator": _is_known,
        }
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port, **options)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()


def _is_known(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
) -> AuthResult:
    del server, session, envelope, mechanism
    assert isinstance(data, LoginPassword)
    is_right = data.login == USER.encode() and data.password == PASSWORD.encode()
    return AuthResult(success=is_right, handled=False)


@contextmanager
def chat(answers: Sequence[int] = ()) -> Iterator[tuple[str, list[bytes]]]:
    """Start a server for a chat: gives its address and what it was sent.

    It answers with these codes, one after the other, and then with 200.
    """
    taken: list[bytes] = []
    codes = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = codes.pop(0) if codes else 200
            if code == 200:
                taken.append(body)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *arguments: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", taken
        finally:
            server.shutdown()
            thread.join()
