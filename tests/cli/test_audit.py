"""`holdfast audit`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import Store
from holdfast.features.limits.model import Rule
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.direct_sql import open_by_hand, unguarded
from tests.support.stores import put_one, work

pytestmark = pytest.mark.req("HF-4", "CX-4")


def test_audit_seals_verifies_exports_and_detects_tampering(holdfast: Holdfast, store: Store, tmp_path: Path) -> None:
    assert error_of(holdfast("audit", "anchor", "--json"))["code"] == "nothing_sealed"
    assert "No changes." in holdfast("audit", "actions").stderr
    job_id = put_one(store)
    work(store)
    store.run(store.limits.set(Rule.of("queue", "mail", 5), "ada", "default"))
    assert "Events and actions sealed: 4." in holdfast("audit", "seal").stderr
    assert document(holdfast("audit", "seal", "--json")) == {"sealed": 0}
    anchor = holdfast("audit", "anchor").stdout.strip()
    assert anchor == document(holdfast("audit", "anchor", "--json"))["anchor"]
    (done,) = document(holdfast("audit", "actions", "--subject", "limit", "--json"))
    assert (done["actor"], done["type"], done["name"], done["changed"]) == (
        "ada",
        "add",
        "queue mail",
        {"concurrency": 5},
    )
    assert "add" in holdfast("audit", "actions", "--since", "1h", "--actor", "ada").stdout
    whole = holdfast("audit", "verify", "--anchor", anchor)
    assert (whole.exit_code, "whole" in whole.stdout) == (0, True)
    shown = holdfast("audit", "show", job_id)
    assert (shown.exit_code, shown.stdout.count("sealed")) == (0, 3)

    file = str(tmp_path / "trail.jsonl")
    assert document(holdfast("audit", "export", "--to", file, "--since", "1h", "--json"))["seals"] == 1
    assert error_of(holdfast("audit", "export", "--to", file, "--json"))["code"] == "file_exists"
    assert document(holdfast("audit", "verify", "--file", file, "--json"))["ok"] is True
    assert holdfast("audit", "verify", "--file", str(tmp_path / "none")).exit_code == 3
    assert holdfast("audit", "verify", "--file", file, "--from", "2").exit_code == 2
    assert holdfast("audit", "verify", "--anchor", "nonsense").exit_code == 2
    assert holdfast("audit", "verify", "--from", "7").exit_code == 3
    assert holdfast("audit", "show", "01a1de74-eb8c-70f1-843b-cac5f6817387").exit_code == 3

    with closing(open_by_hand(store.url)) as owner, unguarded(owner, "event"):
        owner.execute("update event set actor = 'nobody' where type = 'succeed'")
    broken = holdfast("audit", "verify")
    assert (broken.exit_code, "event 3 was changed after it was sealed" in broken.stdout) == (1, True)
    report = json.loads(holdfast("audit", "verify", "--json").stdout)
    assert [(flaw["kind"], flaw["what"], flaw["number"]) for flaw in report["flaws"]] == [("edited", "event", 3)]
    assert holdfast("audit", "show", job_id).exit_code == 1
