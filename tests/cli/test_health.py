"""`holdfast health` and `holdfast doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.features.assembly import Store
from holdfast.features.health.commands import level
from holdfast.features.limits.model import ReservationRequest
from holdfast.stores.requests import Finding
from holdfast.stores.sqlite.connections import database_path
from tests.cli.conftest import Holdfast, document
from tests.cli.durable_jobs import asked
from tests.support.features import pause
from tests.support.stores import BROKEN, forward, new_id, put_one, tries, work


@pytest.mark.req("DP-19")
def test_health_verdict_decides_exit_code(holdfast: Holdfast, store: Store) -> None:
    well = holdfast("health", "--json")
    assert (well.exit_code, document(well)["verdict"]) == (0, "ok")
    put_one(store, "pay", retry=tries(1))
    work(store, BROKEN)
    result = holdfast("health")
    assert result.exit_code == 0, "a warning is not an alarm"
    assert "dead letters" in result.stdout
    assert "[dead_letters]" in result.stdout
    ill = document(holdfast("health", "--json"))
    codes = [reason["code"] for reason in ill["reasons"] if reason["level"] != "advice"]
    assert (ill["verdict"], ill["dead_letter_open"], codes) == ("warn", 1, ["dead_letters"])
    assert holdfast("health", "--strict").exit_code == 1
    assert holdfast("health", "--strict", "--threshold", "dead_letters_warn=2").exit_code == 0
    assert holdfast("health", "--strict", "--tenant", "acme").exit_code == 0
    assert holdfast("health", "--all-tenants", "--strict").exit_code == 1
    forward(store)
    put_one(store, "pay")
    forward(store, 1000)
    assert holdfast("health").exit_code == 1, "no worker is running"
    for wrong in ("dead_letters_warn", "dead_letters_warn=many", "mood=good", "oldest_warn=soon"):
        assert holdfast("health", "--threshold", wrong).exit_code == 2, wrong


@pytest.mark.req("DP-19", "CX-5")
def test_health_shows_open_approvals(holdfast: Holdfast, store: Store) -> None:
    well = document(holdfast("health", "--json"))
    assert (well["approvals_open"], well["oldest_approval_age_s"]) == (0, None)
    assert "oldest approval" not in holdfast("health").stdout
    forward(store)
    asked(store.url)
    forward(store, 90)
    result = holdfast("health")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["open", "approvals", "1"] in lines
    assert ["oldest", "approval", "1", "m", "30", "s", "ago"] in lines
    ill = document(holdfast("health", "--json"))
    assert (ill["verdict"], ill["approvals_open"], ill["oldest_approval_age_s"]) == ("ok", 1, 90.0)
    assert document(holdfast("health", "--tenant", "acme", "--json"))["approvals_open"] == 0


@pytest.mark.req("DP-22")
def test_doctor_passes_on_a_sound_database(holdfast: Holdfast, store: Store) -> None:
    if store.embedded:  # a copy made by the tests, readable by everyone
        for path in Path(database_path(store.url)).parent.glob("jobs.db*"):
            path.chmod(0o600)
    result = holdfast("doctor", "--json")
    report = document(result)
    assert (result.exit_code, report["ok"]) == (0, True)
    assert {"schema"} <= {finding["name"] for finding in report["findings"]}
    assert "✓" in holdfast("doctor").stdout
    pause(store, "SMTP is down", queue="mail")
    output = holdfast("doctor")
    assert (output.exit_code, "SMTP is down" in output.stdout) == (0, True), "shown, but not a fault of the database"
    assert holdfast("doctor", "--strict").exit_code == 1


@pytest.mark.req("DP-22")
def test_doctor_reports_pending_migration(bare: Holdfast, empty_postgres_url: str) -> None:
    result = bare("doctor", "--url", empty_postgres_url)
    assert result.exit_code == 1
    assert any("✗" in line and "schema" in line and "holdfast migrate" in line for line in result.stdout.splitlines())


@pytest.mark.req("DP-22")
def test_superuser_role_is_advice_unless_strict(bare: Holdfast, postgres_url: str) -> None:
    """The role of the tests is a superuser."""
    relaxed = bare("doctor", "--url", postgres_url, "--json")
    (role,) = (finding for finding in document(relaxed)["findings"] if finding["name"] == "role")
    assert (relaxed.exit_code, role["ok"], role["level"]) == (0, False, "advice")
    assert role["says"].startswith("login ")
    strict = bare("doctor", "--url", postgres_url, "--strict", "--json")
    assert (strict.exit_code, document(strict)["ok"]) == (1, False)


@pytest.mark.req("DP-22")
def test_level_of_a_finding() -> None:
    assert level(Finding("role", False, "x"), strict=False) == "advice"
    assert level(Finding("role", False, "x"), strict=True) == "problem"
    assert level(Finding("fsync", False, "x"), strict=False) == "problem"
    assert level(Finding("fsync", True, "x"), strict=True) == "ok"


@pytest.mark.req("DP-19")
def test_health_counts_workers_and_no_reservations(holdfast: Holdfast, store: Store) -> None:
    held = new_id()
    store.run(store.reservations.set(ReservationRequest(held, "resource", "printer", 600), "ada", "default"))
    store.run(store.reservations.record(held, "calibrate", "ada", "default"))
    assert document(holdfast("health", "--json"))["lease_active"] == 0
    assert "live workers 0" in " ".join(holdfast("health").stdout.split())
    store.run(store.leases.open("worker-7", 600, "default"))
    assert "live workers 1" in " ".join(holdfast("health").stdout.split())
