"""Signatures of providers (HF-20): which messages are accepted, and under which id."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from holdfast import webhooks
from holdfast.errors import HoldfastError, InvalidInput, Refused
from holdfast.features.endpoints.verification import Received, verify
from tests.support.providers import NOW, SECRET, signed

pytestmark = pytest.mark.req("HF-20")

STANDARD_SECRET = webhooks.new_secret()
SECRETS = {"standard": STANDARD_SECRET, "github": SECRET, "stripe": SECRET, "slack": SECRET}
BODIES: dict[str, dict[str, Any]] = {
    "standard": {"type": "order.paid", "data": {"order": 7}},
    "github": {"action": "opened", "number": 7},
    "stripe": {"id": "evt_1", "type": "invoice.paid"},
    "slack": {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}},
}
TYPES = {"standard": "order.paid", "github": "push", "stripe": "invoice.paid", "slack": "app_mention"}


def check(provider: str, headers: Any, body: bytes, *secrets: str, now: float = NOW) -> Received:
    return verify(provider, headers, body, secrets or (SECRETS[provider],), now=now, tolerance=300)


@pytest.mark.parametrize("provider", SECRETS)
def test_signed_message_is_accepted_and_a_changed_one_refused(provider: str) -> None:
    body = json.dumps(BODIES[provider]).encode()
    headers = signed(provider, body, SECRETS[provider])
    received = check(provider, headers, body)
    assert (received.type, received.body) == (TYPES[provider], BODIES[provider])
    assert check(provider, [(k.upper().encode(), v.encode()) for k, v in headers.items()], body) == received
    other = webhooks.new_secret()
    assert check(provider, headers, body, other, SECRETS[provider]) == received, "a secret that is rotated"
    for wrong_body, secret in ((body + b" ", SECRETS[provider]), (body, other)):
        with pytest.raises(Refused) as refused:
            check(provider, headers, wrong_body, secret)
        assert refused.value.code == "webhook_signature"


@pytest.mark.parametrize("provider", ["standard", "stripe", "slack"])
def test_old_message_is_refused(provider: str) -> None:
    body = json.dumps(BODIES[provider]).encode()
    headers = signed(provider, body, SECRETS[provider])
    check(provider, headers, body, now=NOW + 299)
    for now in (NOW + 301, NOW - 301):
        with pytest.raises(Refused) as refused:
            check(provider, headers, body, now=now)
        assert refused.value.code == "webhook_timestamp"


def test_known_signatures() -> None:
    """Examples of the providers' own documentation."""
    github = {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    with pytest.raises(InvalidInput, match="neither a JSON object"):  # the signature is right, the body is text
        check("github", github, b"Hello, World!", "It's a Secret to Everybody")
    slack_body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name="
        b"foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F"
        b"hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015."
        b"47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    slack = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    received = check("slack", slack, slack_body, "8f742231b10e8888abcd99yyyzzz85a5", now=1531420618)
    assert (received.type, received.body["user_name"]) == ("webhook-collect", "roadrunner")


def test_what_is_not_signed_does_not_decide_whether_a_message_is_new() -> None:
    body = b'{"zen": "Keep it logically awesome."}'
    headers = signed("github", body, SECRET)
    first = check("github", headers | {"x-github-delivery": "1"}, body)
    again = check("github", headers | {"x-github-delivery": "2", "x-github-event": "release"}, body)
    assert first.id == again.id == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert (first.delivery, again.delivery) == ("1", "2")


def test_slack_checks_its_url_with_a_signed_challenge() -> None:
    body = b'{"type": "url_verification", "challenge": "3eZbrw1a"}'
    assert check("slack", signed("slack", body, SECRET), body).challenge == "3eZbrw1a"


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("provider", "headers", "body"),
    [
        ("github", {}, b"{}"),
        ("github", {"x-hub-signature-256": "sha256=short"}, b"{}"),
        ("github", {"x-hub-signature-256": "sha256=" + "é" * 64}, b"{}"),
        ("github", {"x-hub-signature-256": "sha256=" + signature(b"[]")}, b"[]"),
        ("github", {"x-hub-signature-256": "sha256=" + signature(b'{"a":')}, b'{"a":'),
        ("github", {"x-hub-signature-256": "sha256=" + signature(b"\xff{}")}, b"\xff{}"),
        ("github", {"x-hub-signature-256": "sha256=" + signature(b"{" * 9_000)}, b"{" * 9_000),
        ("github", [("x-hub-signature-256", "a"), ("X-Hub-Signature-256", "b")], b"{}"),
        ("stripe", {"stripe-signature": "v1=abc"}, b"{}"),
        ("stripe", {"stripe-signature": "t=12x,v1=abc"}, b"{}"),
        ("stripe", {"stripe-signature": "t=1,t=2,v1=" + "0" * 64}, b"{}"),
        ("stripe", {"stripe-signature": "t=1," + ",".join(["v1=" + "0" * 64] * 50)}, b"{}"),
        ("slack", {"x-slack-signature": "v0=" + "0" * 64}, b"{}"),
        ("slack", {"x-slack-signature": "v0=" + "0" * 64, "x-slack-request-timestamp": "9" * 40}, b"{}"),
        ("standard", {"webhook-id": "a"}, b"{}"),
        ("github", 7, b"{}"),
        ("github", {}, "text"),
    ],
)
def test_malformed_message_is_refused_as_such(provider: str, headers: Any, body: Any) -> None:
    with pytest.raises(HoldfastError) as refused:
        check(provider, headers, body)
    assert refused.value.code == "webhook_malformed"


def test_short_secret_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        check("github", signed("github", b"{}", "short"), b"{}", "short")
    assert refused.value.code == "webhook_secret"
