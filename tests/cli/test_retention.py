"""`holdfast retention` and `holdfast usage`."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.engine.outcome import Succeeded
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from holdfast.features.retention.commands import due_text
from holdfast.features.retention.model import Preview
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import forward, put_one, settle, state_of, take


@pytest.mark.req("DP-16")
def test_retention_policies_are_set_previewed_run_and_deleted(holdfast: Holdfast, store: Store) -> None:
    assert "kept for ever" in holdfast("retention", "list").stderr
    assert "kept for ever" in holdfast("retention", "preview").stderr
    job_id = put_one(store)
    settle(store, take(store))
    made = document(holdfast("retention", "set", "--clean-after", "1h", "--purge-after", "52w", "--json"))
    assert (made["tenant"], made["kind"], made["clean_after"], made["purge_after"]) == ("default", "*", 3600, 31449600)
    shown = holdfast("retention", "set", "--kind", "invoice", "--for-ever").stdout.split()
    assert shown[-7:-1] == ["default", "invoice", "*", "never", "never", "no"]
    rows = [line.split() for line in holdfast("retention", "list").stdout.splitlines()]
    assert rows[1][:5] == ["default", "*", "*", "1", "h"]
    forward(store, 4000)
    (due, later) = document(holdfast("retention", "preview", "--json"))
    assert (due["action"], due["due"], due["capped"], later["action"], later["due"]) == ("clean", 1, False, "purge", 0)
    assert " 1 " in holdfast("retention", "preview").stdout.splitlines()[1]
    assert document(holdfast("retention", "sweep", "--json")) == {"clean": 1, "purge": 0, "prune": 0, "delete": 0}
    assert "0 cleaned" in holdfast("retention", "sweep").stderr
    assert state_of(store, job_id) is State.CLEANED
    assert holdfast("retention", "remove", "--kind", "invoice").exit_code == 0
    gone = holdfast("retention", "remove", "--kind", "invoice", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "retention_not_found")
    for wrong in (
        [],
        ["--purge-after", "1d", "--for-ever"],
        ["--purge-after", "often"],
        ["--state", "queued", "--for-ever"],
    ):
        assert holdfast("retention", "set", *wrong).exit_code == 2


@pytest.mark.req("DP-16")
@pytest.mark.every_case
def test_one_run_cleans_seals_and_purges(holdfast: Holdfast, store: Store) -> None:
    """A purge waits for the seals of the ledger, also of the events that the cleaning itself has just written."""
    ids = [put_one(store) for _ in range(3)]
    for _ in ids:
        settle(store, take(store))
    assert holdfast("retention", "set", "--clean-after", "1h", "--purge-after", "2h").exit_code == 0
    while store.run(store.audit.seal("test")):
        pass
    forward(store, 8000)
    kept = 1 if store.url.startswith("sqlite") else 0  # the newest event stays until there is a newer one
    done = {"clean": 3, "purge": 3 - kept, "prune": 0, "delete": 0}
    assert document(holdfast("retention", "sweep", "--json")) == done


@pytest.mark.req("DP-16")
def test_run_says_what_is_held_back(holdfast: Holdfast, store: Store) -> None:
    put_one(store)
    settle(store, take(store))
    (first,) = store.run(store.ledger.read(None, 1, "*"))
    store.run(store.ledger.save_cursor("reports", first.cursor, None, "*"))
    assert holdfast("retention", "set", "--purge-after", "2h").exit_code == 0
    forward(store, 8000)
    said = holdfast("retention", "sweep").stderr
    assert "1 cleaned, 0 purged" in said
    assert "1 held back by consumer reports" in said


@pytest.mark.req("DP-16")
def test_preview_names_the_sample_of_a_count() -> None:
    entry = Preview("default", "*", "succeeded", "clean", 0, True, None, 0, None)
    assert due_text(entry) == "0 of the first 10,000"
    assert due_text(replace(entry, due=12)) == "12+"
    assert due_text(replace(entry, due=12, capped=False)) == "12"


@pytest.mark.req("HK-5")
def test_usage_is_reported_by_dimension(holdfast: Holdfast, store: Store) -> None:
    assert "No usage." in holdfast("usage").stderr
    for kind in ("mail", "=cmd()"):
        put_one(store, kind)
        settle(store, take(store), Succeeded(cost=1.5))
    (total,) = document(holdfast("usage", "--by", "", "--json"))
    assert (total["enqueued"], total["succeeded"], total["cost"], total["kind"]) == (2, 2, 3.0, None)
    assert [each["day"][:2] for each in document(holdfast("usage", "--json"))] == ["20", "20"]
    rows = list(csv.DictReader(io.StringIO(holdfast("usage", "--by", "kind", "--since", "7d", "--csv").stdout)))
    assert [(row["kind"], row["started"], row["cost"]) for row in rows] == [
        ("'=cmd()", "1", "1.5"),
        ("mail", "1", "1.5"),
    ]
    assert "mail" in holdfast("usage", "--by", "tenant,kind,day", "--kind", "mail").stdout.splitlines()[1]
    put_one(store, "late")
    assert "late" not in holdfast("usage", "--no-count").stdout
    assert "late" in holdfast("usage").stdout
    assert document(holdfast("usage", "--until", "2001-01-01", "--json")) == []
    for wrong in (["--by", "hour"], ["--since", "soon"], ["--csv", "--json"]):
        assert holdfast("usage", *wrong).exit_code == 2


@pytest.mark.req("DP-28")
def test_jobs_are_archived_listed_verified_and_shown(
    holdfast: Holdfast, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ARTIFACTS", str(tmp_path / "artifacts"))
    job_id = put_one(store)
    settle(store, take(store))
    assert "No archives." in holdfast("archives", "list").stderr
    assert document(holdfast("retention", "set", "--clean-after", "1h", "--archive", "--json"))["archive"]
    forward(store, 4000)
    assert "1 jobs archived, in 1 files." in holdfast("archives", "run").stderr
    (listed,) = document(holdfast("archives", "list", "--json"))
    assert (listed["jobs"], listed["first_job"]) == (1, job_id)
    assert listed["id"] in holdfast("archives", "list").stdout
    assert f"{listed['id']}  ok  1 jobs" in holdfast("archives", "verify", "--all").stdout
    assert document(holdfast("archives", "read", job_id))["job"]["id"] == job_id
    (file,) = (tmp_path / "artifacts" / "default" / listed["id"]).iterdir()
    file.write_bytes(b"something else")
    damaged = holdfast("archives", "verify", listed["id"])
    assert (damaged.exit_code, "was changed after it was written" in damaged.stdout) == (1, True)
    assert not document(holdfast("archives", "verify", listed["id"], "--json"))[0]["ok"]
    assert holdfast("archives", "verify").exit_code == 2
    assert holdfast("archives", "read", listed["id"]).exit_code == 3
