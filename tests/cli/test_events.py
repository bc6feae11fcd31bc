"""`holdfast events`: from the beginning, a cursor or a consumer's position, and following."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.processes import started
from tests.support.stores import put_one, work

pytestmark = pytest.mark.req("DP-12")


def event_types(events: list[dict[str, object]]) -> list[object]:
    return [event["type"] for event in events]


def test_events_are_paged_by_cursor(holdfast: Holdfast, store: Store) -> None:
    put_one(store, "pay")
    work(store)
    first = document(holdfast("events", "--limit", "2", "--json"))
    rest = document(holdfast("events", "--after", first[-1]["cursor"], "--json"))
    assert event_types(first + rest) == ["enqueue", "take", "succeed"]
    assert document(holdfast("events", "--after", rest[-1]["cursor"], "--json")) == []
    result = holdfast("events")
    assert len(result.stdout.splitlines()) == 3
    assert "pay  take  queued → in_progress try 1  by worker-1" in result.stdout
    assert "--after '" in result.stderr


def test_consumer_continues_at_its_position(holdfast: Holdfast, store: Store) -> None:
    put_one(store)
    work(store)
    assert event_types(document(holdfast("events", "--consumer", "mail", "--limit", "2", "--json"))) == [
        "enqueue",
        "take",
    ]
    assert event_types(document(holdfast("events", "--consumer", "mail", "--json"))) == ["succeed"]
    assert document(holdfast("events", "--consumer", "mail", "--json")) == []
    assert len(document(holdfast("events", "--consumer", "other", "--json"))) == 3


def test_events_respect_tenant(holdfast: Holdfast, store: Store) -> None:
    put_one(store)
    put_one(store, tenant="acme")
    assert len(document(holdfast("events", "--json"))) == 1
    assert len(document(holdfast("events", "--all-tenants", "--json"))) == 2


def test_invalid_start_is_rejected(holdfast: Holdfast) -> None:
    bad = holdfast("events", "--after", "nonsense", "--json")
    assert bad.exit_code == 2
    assert error_of(bad)["code"].startswith("invalid")
    assert holdfast("events", "--after", "1", "--consumer", "mail").exit_code == 2


@pytest.mark.slow
def test_follow_prints_new_events(store: Store, tmp_path: Path) -> None:
    put_one(store, "first")
    with started(["events", "--follow", "--json"], cwd=tmp_path, url=store.url) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "first"
        put_one(store, "second")
        assert json.loads(process.stdout.readline())["kind"] == "second"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
