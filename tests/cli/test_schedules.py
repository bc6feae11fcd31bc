"""`holdfast schedules` and `holdfast templates`, as text and as JSON."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast import App
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of

pytestmark = pytest.mark.req("SC-8", "SC-9")


def test_schedule_is_created_run_edited_paused_and_deleted(holdfast: Holdfast, store: Store) -> None:
    assert "No matching schedules." in holdfast("schedules", "list").stderr
    made = document(
        holdfast(
            *("schedules", "add", "nightly", "30 1 * * *", '{"scope": "night"}', "--kind", "report"),
            *("--tz", "Europe/London", "--missed", "all", "--overlap", "skip", "--jitter", "5m", "--queue", "slow"),
            *("--max-attempts", "3", "--deadline", "2h", "--tag", "t", "--json"),
        )
    )
    assert (made["words"], made["zone"], made["jitter"]) == ("At 01:30 every day", "Europe/London", 300.0)
    assert made["options"]["deadline"] == 7200.0
    shown = holdfast("schedules", "show", "nightly")
    for words in ("in words      At 01:30 every day", "overlap       skip", "makes         report", '"scope": "night"'):
        assert words in shown.stdout
    header, row = holdfast("schedules", "list").stdout.splitlines()
    assert (header.split()[0], row.split()[0]) == ("name", "nightly")

    job_id = holdfast("schedules", "run", "nightly").stdout.strip()
    busy = holdfast("schedules", "run", "nightly", "--json")
    assert (busy.exit_code, error_of(busy)["code"]) == (4, "schedule_running")
    assert document(holdfast("schedules", "run", "nightly", "--anyway", "--json"))["job_id"] != job_id
    (latest, first) = document(holdfast("schedules", "history", "nightly", "--json"))
    assert (first["job_id"], first["status"], first["manual"], latest["manual"]) == (job_id, "fired", True, True)
    assert "fired" in holdfast("schedules", "history", "nightly", "--limit", "1").stdout
    assert "made from  schedule nightly, for " in holdfast("jobs", "show", job_id).stdout
    assert document(holdfast("jobs", "show", job_id, "--json"))["made_from"]["schedule"] == "nightly"

    edited = document(holdfast("schedules", "edit", "nightly", "--timing", "@hourly", "{}", "--json"))
    assert (edited["timing"], edited["payload"], edited["overlap"]) == ("@hourly", {}, "skip")
    assert document(holdfast("schedules", "pause", "nightly", "--json"))["state"] == "paused"
    assert [each["name"] for each in document(holdfast("schedules", "list", "--state", "paused", "--json"))] == [
        "nightly"
    ]
    assert "active" in holdfast("schedules", "resume", "nightly").stdout
    assert "Removed schedule nightly" in holdfast("schedules", "remove", "nightly").stderr
    gone = holdfast("schedules", "show", "nightly", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "schedule_not_found")


def test_deleting_a_declared_schedule_says_that_it_comes_back(holdfast: Holdfast, store: Store) -> None:
    with closing(App(store.url, name="shop")) as app:

        @app.schedule("@daily")
        @app.job
        def often() -> None: ...

        app.tick()
        deleted = holdfast("schedules", "remove", "often").stderr
        for words in ("Removed schedule often.", "The code of shop declares it", "holdfast schedules pause often"):
            assert words in " ".join(deleted.split())
        assert "schedule_not_found" in holdfast("schedules", "remove", "often").stderr
    with closing(App(store.url, name="shop")) as app:
        app.schedule("@daily", name="often", kind="often")
        app.tick()
        assert document(holdfast("schedules", "remove", "often", "--json"))["declared_by"] == "shop"


def test_preview_of_a_timing_without_a_schedule(holdfast: Holdfast, store: Store) -> None:
    preview = document(
        holdfast("schedules", "preview", "--timing", "30 1 * * *", "--tz", "Europe/London", "--count", "3", "--json")
    )
    assert (preview["words"], len(preview["times"])) == ("At 01:30 every day", 3)
    assert "every 1 min 30 s (UTC)" in holdfast("schedules", "preview", "--timing", "every 90s").stdout
    assert "At 01:30 every day (UTC)" in holdfast("schedules", "preview", "30 1 * * *").stdout
    holdfast("schedules", "add", "daily", "@daily", "--kind", "report")
    assert len(document(holdfast("schedules", "preview", "daily", "--json"))["times"]) == 10
    for arguments, code in (
        ((), "conflicting_options"),
        (("--timing", "61 * * * *"), "invalid_schedule"),
        (("--timing", "@daily", "--tz", "Mars/Base"), "unknown_zone"),
    ):
        refused = holdfast("schedules", "preview", *arguments, "--json")
        assert (refused.exit_code, error_of(refused)["code"]) == (2, code)


def test_templates_are_versioned_enqueued_and_removed(holdfast: Holdfast, store: Store) -> None:
    assert "No templates." in holdfast("templates", "list").stderr
    first = document(
        holdfast("templates", "set", "monthly", "report", '{"scope": "month"}', "--queue", "slow", "--json")
    )
    assert (first["version"], first["options"]) == (1, {"queue": "slow"})
    assert "version  2" in holdfast("templates", "set", "monthly", "report", "--priority", "3").stdout
    assert document(holdfast("templates", "show", "monthly", "--version", "1", "--json")) == first
    assert [each["version"] for each in document(holdfast("templates", "versions", "monthly", "--json"))] == [2, 1]
    job_id = holdfast("templates", "enqueue", "monthly", '{"month": 3}', "--version", "1").stdout.strip()
    shown = document(holdfast("jobs", "show", job_id, "--json"))
    assert shown["job"]["payload"] == {"scope": "month", "month": 3}
    assert "made from  template monthly, version 1" in holdfast("jobs", "show", job_id).stdout
    assert len(holdfast("templates", "list").stdout.splitlines()) == 2
    assert "Removed template monthly" in holdfast("templates", "remove", "monthly").stderr
    gone = holdfast("templates", "enqueue", "monthly", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "template_not_found")


def test_unknown_schedule_names_where_declared_ones_come_from(holdfast: Holdfast, store: Store) -> None:
    result = holdfast("schedules", "preview", "nightly")
    assert result.exit_code == 3
    assert "stored when the first worker starts" in result.stderr
