"""`holdfast enqueue`: sources of payloads, options, and rejected input."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast.engine.job import Job
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import job

SHOP = """
import holdfast
app = holdfast.App()
def make_app() -> holdfast.App: return app
@app.job(queue="mail")
def send(to: str, copies: int = 1) -> None: ...
"""


def made(store: Store, result: Result) -> Job:
    assert result.exit_code == 0, result.stderr
    return job(store, result.stdout.strip())


@pytest.mark.req("DP-9", "CX-17", "DP-23")
def test_every_option_reaches_the_job(holdfast: Holdfast, store: Store) -> None:
    result = holdfast(
        *("enqueue", "mail.send", '{"to": "a@b.c"}', "--queue", "mail", "--priority", "7", "--delay", "5m"),
        *("--key", "k-1", "--tag", "red", "--tag", "blue", "--tenant", "acme"),
        *("--executor", "gpu-1"),
    )
    stored = made(store, result)
    assert (stored.kind, stored.payload, stored.queue, stored.priority) == ("mail.send", {"to": "a@b.c"}, "mail", 7)
    assert (stored.idempotency_key, stored.tags, stored.tenant) == ("k-1", ("red", "blue"), "acme")
    assert stored.executor == "gpu-1"
    for label, ids in (("gpu-1", [stored.id]), ("gpu-2", [])):
        listed = holdfast("jobs", "list", "--executor", label, "--tenant", "acme", "--json")
        assert [row["id"] for row in document(listed)] == ids
    assert stored.due_at is not None
    assert timedelta(minutes=4) < stored.due_at - stored.created_at <= timedelta(minutes=5)


@pytest.mark.req("DP-9")
def test_at_option_sets_due_time(holdfast: Holdfast, store: Store) -> None:
    stored = made(store, holdfast("enqueue", "x", "--at", "2100-01-31T09:00:00+02:00"))
    assert stored.due_at == datetime(2100, 1, 31, 7, tzinfo=UTC)


@pytest.mark.req("DP-22")
def test_payload_is_read_from_a_file_or_stdin(holdfast: Holdfast, store: Store, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    assert made(store, holdfast("enqueue", "x", f"@{tmp_path}/payload.json")).payload == {"from": "file"}
    assert made(store, holdfast("enqueue", "x", "-", input='{"from": "stdin"}')).payload == {"from": "stdin"}
    assert made(store, holdfast("enqueue", "x")).payload == {}


@pytest.mark.req("DP-22")
def test_without_an_app_it_says_what_it_does_not_know(holdfast: Holdfast, store: Store) -> None:
    unchecked = holdfast("enqueue", "mail", '{"to": "x"}')
    assert made(store, unchecked).queue == "default"
    assert unchecked.stderr == "Stored without --app: queue default, payload not checked against a handler.\n"
    assert "queue mail," in holdfast("enqueue", "mail", "--queue", "mail").stderr
    assert holdfast("enqueue", "mail", "--json").stderr == ""
    assert holdfast("enqueue", "http.request", '{"url": "https://example.com"}').stderr == ""


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ("{'single': 1}", "payload_not_json"),
        ("", "payload_not_json"),
        ("NaN", "payload_not_finite"),
        ("[" * 5000, "payload_too_deep"),
        ('"\\u0000"', "payload_bad_text"),
        ("@no-such-file.json", "unreadable_file"),
        ("@.", "unreadable_file"),
    ],
)
def test_invalid_payload_is_rejected(bare: Holdfast, sqlite_url: str, payload: str, code: str) -> None:
    result = bare("enqueue", "x", payload, "--json", "--url", sqlite_url)
    assert result.exit_code == 2
    assert error_of(result)["code"] == code


@pytest.mark.req("DP-22")
@pytest.mark.parametrize("size", [1_100_000, 9_000_000])
def test_payload_over_limit_is_rejected(bare: Holdfast, sqlite_url: str, size: int) -> None:
    result = bare("enqueue", "x", "-", "--json", "--url", sqlite_url, input=json.dumps("x" * size))
    assert (result.exit_code, error_of(result)["code"]) == (2, "payload_too_large")


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--delay", "soon"), "invalid_duration"),
        (("--delay", "-5"), "invalid_duration"),
        (("--delay", "inf"), "invalid_duration"),
        (("--at", "2100-01-31T09:00:00"), "invalid_time"),
        (("--at", "tomorrow"), "invalid_time"),
        (("--at", "2100-01-31T09:00:00Z", "--delay", "5m"), "conflicting_options"),
        (("--priority", "40000"), "usage"),
        (("--queue", " "), "invalid_name"),
        (("--tenant", "*"), "invalid_name"),
        (("--dedupe", "maybe"), "usage"),
    ],
)
def test_invalid_option_is_rejected(bare: Holdfast, sqlite_url: str, options: tuple[str, ...], code: str) -> None:
    result = bare("enqueue", "x", *options, "--json", "--url", sqlite_url)
    assert result.exit_code == 2
    assert error_of(result)["code"] == code


@pytest.mark.req("DP-5")
def test_key_returns_first_job_and_rejects_another_payload(holdfast: Holdfast) -> None:
    first = document(holdfast("enqueue", "pay", '{"n": 1}', "--key", "k", "--json"))
    again = document(holdfast("enqueue", "pay", '{"n": 1}', "--key", "k", "--json"))
    assert first["created"] is True
    assert (again["created"], again["id"]) == (False, first["id"])
    other = holdfast("enqueue", "pay", '{"n": 2}', "--key", "k", "--json")
    assert (other.exit_code, error_of(other)["code"]) == (4, "idempotency_conflict")


@pytest.mark.req("HK-2")
def test_dedupe_by_content_returns_first_job(holdfast: Holdfast) -> None:
    first = holdfast("enqueue", "pay", '{"n": 1}', "--dedupe", "skip")
    again = holdfast("enqueue", "pay", '{"n": 1}', "--dedupe", "skip")
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert "No new job" in again.stderr


@pytest.mark.req("HF-5")
@pytest.mark.parametrize("attribute", ["app", "make_app"])
def test_app_option_checks_payload_by_signature(
    holdfast: Holdfast, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    name = f"cli_shop_{tmp_path.name.translate(str.maketrans('-[]', '___'))}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    target = ("--app", f"{name}:{attribute}")
    checked = holdfast("enqueue", "send", '{"to": "a@b.c"}', *target)
    assert checked.stderr == ""
    good = made(store, checked)
    assert (good.queue, good.payload) == ("mail", {"to": "a@b.c"})
    for payload in ('{"to": "a@b.c", "copies": "many"}', '{"who": 1}', "[]", "{}"):
        bad = holdfast("enqueue", "send", payload, *target, "--json")
        assert (bad.exit_code, error_of(bad)["code"]) == (2, "invalid_arguments")
    unknown = holdfast("enqueue", "sent", *target, "--json")
    assert (unknown.exit_code, error_of(unknown)["code"]) == (3, "unknown_kind")
    sys.modules.pop(name)
