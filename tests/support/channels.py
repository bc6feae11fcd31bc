"""Stand-ins for the channels of notifiers: they speak the real protocols and refuse what the real ones refuse."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword

from tests.support.http_server import Page, Web

USER, PASSWORD = "holdfast@example.com", "correct horse battery"


class Slack:
    """An incoming webhook: answers ``ok``, or 400 ``invalid_blocks`` as Slack does."""

    def __init__(self, web: Web, path: str = "/services/T0/B0/secret") -> None:
        self.messages: list[dict[str, Any]] = []
        self.url = f"{web.url}{path}"
        self.down = False
        web.pages[path] = self._serve

    def _serve(self, page: Page) -> None:
        body = json.loads(page.server.asked[-1].body)
        why = None if self.down else flaw_of_blocks(body)
        if self.down:
            page.answer(503, b"service_unavailable")
        elif why is not None:
            page.answer(400, f"invalid_blocks: {why}".encode())
        else:
            self.messages.append(body)
            page.answer(200, b"ok")

    def texts(self) -> list[str]:
        return [json.dumps(each, ensure_ascii=False) for each in self.messages]


def flaw_of_blocks(message: Any) -> str | None:
    """What is wrong with a message by the reference of Block Kit; None if nothing is."""
    if not isinstance(message, dict) or not isinstance(message.get("text"), str) or not message["text"]:
        return "no text"
    if set(message) - {"text", "blocks", "unfurl_links"} or not 1 <= len(message.get("blocks", [])) <= 50:
        return "unknown keys, or no blocks"
    for block in message["blocks"]:
        match block:
            case {"type": "header", "text": text}:
                wrong = _text_flaw(text, 150)
            case {"type": "section", "fields": [_, *_] as fields}:
                wrong = next(filter(None, (_text_flaw(each, 2_000) for each in fields)), None)
                wrong = "too many fields" if len(fields) > 10 else wrong
            case {"type": "actions", "elements": [{"type": "button", "text": text, "url": url, "action_id": id}]}:
                wrong = _text_flaw(text, 75)
                wrong = wrong or ("url" if len(url) > 3_000 or not url.startswith("http") or len(id) > 255 else None)
            case _:
                wrong = f"block {str(block)[:60]}"
        if wrong:
            return wrong
    return None


def _text_flaw(text: Any, most: int) -> str | None:
    if set(text) != {"type", "text", "emoji"} or text["type"] != "plain_text" or not isinstance(text["emoji"], bool):
        return "text object"
    return None if 1 <= len(text["text"]) <= most else "length of a text"


class Mailbox:
    """The handler of a real SMTP server."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.sessions: list[tuple[bool, bool]] = []
        """Of each mail: whether its connection was encrypted, and authenticated."""
        self.refused: set[str] = set()
        self.busy = False

    async def handle_RCPT(
        self, server: SMTP, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.busy:
            return "451 4.3.0 try again later"
        if address in self.refused:
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        mail: Any = message_from_bytes(envelope.original_content or b"", policy=policy.default)
        self.mails.append((list(envelope.rcpt_tos), mail))
        self.sessions.append((session.ssl is not None, bool(session.authenticated)))
        return "250 OK"


class _OnAnyPort(Controller):
    def _trigger_server(self) -> None:
        listening: Any = self.server
        self.port = listening.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@contextmanager
def mail_server(mailbox: Mailbox, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """An SMTP server on loopback; with ``tls`` it requires STARTTLS and a login. Yields its port."""

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known)

    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"tls_context": tls, "require_starttls": True, "auth_required": True, "authenticator": authenticate}
    controller = _OnAnyPort(mailbox, hostname="127.0.0.1", port=0, **secure)
    controller.start()
    try:
        yield int(controller.port)
    finally:
        controller.stop()
