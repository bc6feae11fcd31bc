"""Standard Webhooks: valid signatures are accepted, altered or malformed messages are rejected."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import webhooks
from holdfast.engine.job import DEFAULT_RETRY
from holdfast.engine.times import EPOCH
from holdfast.errors import HoldfastError, InvalidInput, InvalidSetting
from holdfast.features.webhooks.model import WebhookDraft, check_url, message_of, verdict_of
from holdfast.features.webhooks.signing import key_of, secret_of
from tests.support.strategies import CHARACTERS

pytestmark = pytest.mark.req("JF-9")

NOW = 1_614_265_330
# The example published with the standard.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(NOW), "webhook-signature": SIGNED}


def check(headers: Any = HEADERS, body: Any = BODY, secrets: Any = SECRET, now: float = NOW) -> str:
    """The error code, or the id of an accepted message."""
    try:
        return webhooks.verify(headers, body, secrets, now=now).id
    except HoldfastError as error:
        return error.code


def test_published_example_is_signed_and_verified() -> None:
    assert webhooks.sign(SECRET, ID, BODY, now=NOW) == HEADERS
    assert check() == ID
    assert check({name.upper(): value.encode() for name, value in HEADERS.items()}) == ID
    assert check([(name.encode(), value) for name, value in HEADERS.items()]) == ID
    assert webhooks.verify(HEADERS, BODY, SECRET, now=NOW).json() == {"test": 2432232314}


def test_altered_message_is_rejected() -> None:
    other = webhooks.new_secret()
    assert check(body=BODY + b" ") == "webhook_signature"
    assert check(HEADERS | {"webhook-id": "msg_2"}) == "webhook_signature"
    assert check(HEADERS | {"webhook-timestamp": str(NOW + 1)}) == "webhook_signature"
    assert check(secrets=other) == "webhook_signature"
    assert (check(now=NOW + 300), check(now=NOW - 300)) == (ID, ID)
    assert check(now=NOW + 301) == check(now=NOW - 301) == "webhook_timestamp"


def test_old_and_new_secret_are_valid_during_rotation() -> None:
    new = webhooks.new_secret()
    both = webhooks.sign([new, SECRET], ID, BODY, now=NOW)
    assert both["webhook-signature"].split(" ")[1] == SIGNED
    assert check(both) == check(both, secrets=new) == check(HEADERS, secrets=[new, SECRET]) == ID
    assert check(HEADERS | {"webhook-signature": f"v2,abc v1a,x {SIGNED}"}) == ID


@pytest.mark.parametrize(
    "headers",
    [
        {},
        HEADERS | {"webhook-id": "a.b"},
        HEADERS | {"webhook-id": ""},
        HEADERS | {"webhook-id": "x" * 300},
        HEADERS | {"webhook-timestamp": "-5"},
        HEADERS | {"webhook-timestamp": "١٢٣"},
        HEADERS | {"webhook-timestamp": "9" * 5000},
        HEADERS | {"webhook-signature": "v2,abc"},
        HEADERS | {"webhook-signature": " ".join([SIGNED] * 21)},
        HEADERS | {"webhook-signature": 5},
        [*HEADERS.items(), ("Webhook-Id", "another")],
        ["webhook-id"],
        None,
    ],
)
def test_malformed_headers_are_rejected(headers: Any) -> None:
    assert check(headers) == "webhook_malformed"


FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(list(HEADERS)), st.text(CHARACTERS, max_size=50) | st.binary(max_size=50) | st.integers()
    ),
    st.binary(max_size=200) | st.text(CHARACTERS, max_size=5),
    st.text(CHARACTERS, max_size=80) | st.just(SECRET) | st.lists(st.text(CHARACTERS, max_size=20), max_size=3),
)
def test_verify_raises_only_documented_errors(headers: Any, body: Any, secrets: Any) -> None:
    """With random headers, alone and on top of valid ones."""
    for given_ in (headers, HEADERS | headers):
        result = check(given_, body, secrets)
        assert result in {ID, "webhook_malformed", "webhook_signature", "webhook_timestamp", "webhook_secret"}
        assert result != ID or (body == BODY and HEADERS | headers == HEADERS)


@FUZZ
@given(st.binary(max_size=100))
def test_secret_must_have_24_to_64_bytes(key: bytes) -> None:
    text = "whsec_" + base64.b64encode(key).decode()
    if 24 <= len(key) <= 64:
        assert key_of(secret_of(key)) == key_of(text) == key
    else:
        with pytest.raises(InvalidSetting) as refused:
            key_of(text)
        assert text not in str(refused.value)


def test_seen_ids_are_bounded() -> None:
    seen = webhooks.Seen(most=2)
    assert [seen.first(id) for id in ("a", "b", "a", "c", "b", "a")] == [True, True, False, True, False, True]


def test_response_status_decides_delivery() -> None:
    assert {verdict_of(status, 1).action for status in (200, 204, 299)} == {"delivered"}
    assert verdict_of(410, 1).action == "gone"
    assert {verdict_of(status, 99).action for status in (500, 503, 408, 425, 429, 100)} == {"retry"}
    refusals = (301, 307, 400, 401, 404, 499)
    assert {verdict_of(status, 3).action for status in refusals} == {"retry"}
    assert {verdict_of(status, 4).action for status in refusals} == {"give_up"}


def test_message_body_is_deterministic_and_omits_host_details() -> None:
    event = {"name": "job.lease_expired", "at": "2026-01-01T00:00:00Z", "actor": "worker 7 (host-3:99)", "job_id": "j"}
    event["meta"] = {"error_code": "worker_lost", "frame": "shop:pay"}  # type: ignore[assignment]
    id, type, body = message_of({"event": event}, "0-1", EPOCH)
    assert (id, type) == ("msg_01", "job.crashed")
    assert body == (
        b'{"type":"job.crashed","timestamp":"2026-01-01T00:00:00Z","data":{"name":"job.lease_expired",'
        b'"actor":"worker 7","job_id":"j","meta":{"error_code":"worker_lost"}}}'
    )
    assert message_of({"event": event, "message": "msg_9"}, "0-2", EPOCH) == ("msg_9", type, body)
    assert message_of({"type": "order.paid", "data": {"id": 7}}, "0-1", EPOCH)[1:] == (
        "order.paid",
        b'{"type":"order.paid","timestamp":"1970-01-01T00:00:00.000000Z","data":{"id":7}}',
    )
    with pytest.raises(InvalidInput):
        message_of({"event": {}}, "0-1", EPOCH)


def test_invalid_webhook_is_rejected() -> None:
    good: dict[str, Any] = {"name": "ops", "url": "https://a.example", "secrets": "HOOK"}
    wrong: list[dict[str, Any]] = [
        {"name": "Ops"},
        {"name": "a/b"},
        {"name": ""},
        {"name": "x" * 61},
        {"url": "ftp://a.example"},
        {"url": "https://"},
        {"url": "https://user:pass@a.example"},
        {"url": "https://a.example/\r\nx: y"},
        {"url": "https://a.example/" + "x" * 2000},
        {"url": "http://[::1"},
        {"url": "https://a.example:99999"},
        {"secrets": []},
        {"secrets": ["A", "A"]},
        {"secrets": ["a b"]},
        {"secrets": ["acme__HOOK"]},
        {"secrets": ["ACME__HOOK"]},
        {"secrets": "whsec_c2VjcmV0"},
        {"wants": []},
        {"wants": ["job.nonsense"]},
        {"wants": ["*"]},
        {"options": {"payload": {}}},
    ]
    for bad in wrong:
        with pytest.raises(InvalidSetting) as refused:
            WebhookDraft.of(**(good | bad))
        assert "c2VjcmV0" not in str(refused.value)
    assert check_url("https://a.example/@me#part") == "https://a.example/%40me"
    made = WebhookDraft.of(**good, wants=["job.crashed|order.*", "job.failed"])
    ledger, event = made.subscriptions().values()
    assert ledger is not None
    assert event is not None
    assert (ledger.pattern, event.pattern) == ("job.crash|job.lease_expired|job.fail", "order.*")
    assert ledger.job_options["max_attempts"] == 11 > DEFAULT_RETRY.max_attempts
