"""`holdfast payload-rules`, `holdfast keys`, and how commands show payloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.engine.outcome import Succeeded
from holdfast.engine.steps import StepEntry
from holdfast.features.assembly import Store
from holdfast.features.payloads.model import NO_RULE, Effective
from holdfast.stores.vault import Vault, new_key, reference_in
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.direct_sql import open_by_hand
from tests.support.stores import put_one, settle, take

CANARY = "canary-7f3a9c"


@pytest.mark.req("DP-4")
def test_rules_are_set_checked_enforced_and_deleted(holdfast: Holdfast, store: Store) -> None:
    assert "No payload rules." in holdfast("payload-rules", "list").stderr
    made = document(
        holdfast("payload-rules", "set", "import", "--signal-only", "--forbid", "IBAN", "--forbid", "x", "--json")
    )
    assert (made["tenant"], made["kind"], made["forbidden"]) == ("default", "import", ["iban", "x"])
    assert holdfast("payload-rules", "set", "--all-tenants", "--max-bytes", "4KB", "--store").exit_code == 0
    rows = [line.split() for line in holdfast("payload-rules", "list").stdout.splitlines()]
    assert rows[1][:8] == ["*", "*", "payload", "up", "to", "4", "KB,", "larger"]
    assert rows[2][:4] == ["import", "default", "signal", "only"]
    shown = [" ".join(line.split()) for line in holdfast("payload-rules", "show", "import").stdout.splitlines()]
    assert {"import", "says signal only", "forbidden iban, x"} <= set(shown)
    refused = holdfast("payload-rules", "check", "import", json.dumps({"a": [{"Iban": CANARY}]}), "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "payload_forbidden")
    assert "$.a[0].Iban" in error_of(refused)["message"]
    assert CANARY not in refused.stderr
    assert holdfast("payload-rules", "check", "import", '{"row": 7}').exit_code == 0
    refused = holdfast("enqueue", "import", json.dumps({"iban": CANARY}))
    assert (refused.exit_code, "payload_forbidden" in refused.stderr, CANARY in refused.stderr) == (4, True, False)
    assert holdfast("payload-rules", "remove", "import").exit_code == 0
    assert holdfast("payload-rules", "remove", "import").exit_code == 3
    assert holdfast("payload-rules", "show", "import").exit_code == 3
    for wrong in ([], ["x", "--forbid", "y"], ["x", "--max-bytes", "few"]):
        assert holdfast("payload-rules", "set", *wrong).exit_code == 2


@pytest.mark.req("DP-4")
def test_restricted_payload_is_hidden_and_references_are_shown(holdfast: Holdfast, store: Store) -> None:
    refs = ("--source-ref", "s3://in/7", "--payload-ref", "vault:9")
    job = holdfast("enqueue", "heal", json.dumps({"who": CANARY}), *refs).stdout.strip()
    shown = holdfast("jobs", "show", job).stdout
    assert "s3://in/7" in shown
    assert "vault:9" in shown
    assert CANARY in shown
    assert holdfast("payload-rules", "set", "heal", "--restricted").exit_code == 0
    assert take(store).payload == json.dumps({"who": CANARY}, separators=(",", ":"))
    for command in (("jobs", "show", job), ("jobs", "list"), ("jobs", "history", job), ("why", job), ("events",)):
        for more in ((), ("--json",)):
            done = holdfast(*command, *more)
            assert done.exit_code == 0, command
            assert CANARY not in done.stdout + done.stderr, command
    assert "[restricted]" in holdfast("jobs", "show", job).stdout


@pytest.mark.req("DP-4")
def test_rotated_keys_reseal_payloads_results_and_steps(
    holdfast: Holdfast, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No keys" in holdfast("keys", "list").stderr
    assert holdfast("keys", "rotate").exit_code == 2
    entry = holdfast("keys", "generate", "--name", "new").stdout.strip()
    old = f"old:{new_key()}"
    monkeypatch.setenv("HOLDFAST_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    ids = [holdfast("enqueue", "heal", json.dumps({"who": CANARY, "n": n})).stdout.strip() for n in range(3)]
    lost = put_one(store, "heal", payload={"$holdfast": {"key": "gone", "sealed": "AAAA"}})
    first, sealing = take(store), Vault.of(tmp_path, old)
    small = sealing.pack('"done"', NO_RULE, what="result", kind="heal", tenant="default", job_id=first.id)
    assert settle(store, first, Succeeded(small)) == []
    second, stores = take(store), Effective(store=True, max_result_bytes=300)
    text = json.dumps(CANARY * 50)
    large = sealing.pack(text, stores, what="result", kind="heal", tenant="default", job_id=second.id)
    assert settle(store, second, Succeeded(large, ref=reference_in(large))) == []
    third = take(store)
    bound = {"tenant": "default", "job_id": third.id}
    sealed = sealing.pack_part(json.dumps(CANARY), what="step", place="1", **bound).text
    assert store.run(store.steps.save(third.lease, [(third.id, 1, StepEntry(1, "ask", "step", sealed))], "*")) == []
    for name, whose in (
        ("row", third.id),
        ("gone", first.id),
    ):  # the second is bound to another job and cannot be opened
        value = sealing.pack_part(
            json.dumps(CANARY), what="checkpoint", tenant="default", job_id=whose, place=name
        ).text
        assert store.run(store.steps.save_checkpoint(third.id, third.lease, 1, name, value, "*"))
    shown = holdfast("jobs", "show", ids[0]).stdout + holdfast("jobs", "show", third.id).stdout
    assert shown.count("sealed with key old") == 2 + 4
    assert CANARY not in shown
    monkeypatch.setenv("HOLDFAST_KEYS", f"{entry},{old}")
    assert [row.split() for row in holdfast("keys", "list").stdout.splitlines()[1:]] == [["new", "current"], ["old"]]
    done = holdfast("keys", "rotate", "--page", "2", "--json")
    assert done.exit_code == 1  # one payload cannot be opened
    assert document(done) == {"resealed": 5 + 2, "unread": 1 + 1, "passed": 0}
    # From here on the new key is enough; the changes are recorded.
    monkeypatch.setenv("HOLDFAST_KEYS", entry)
    vault = Vault.of(tmp_path, entry)
    by_hand = open_by_hand(store.url)
    rows = by_hand.execute("select id, payload from job where kind = 'heal'")
    texts = {str(k): v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in rows}
    opened = [json.loads(vault.open(texts[i], what="payload", tenant="default", job_id=i)) for i in ids]
    assert opened == [{"who": CANARY, "n": n} for n in range(3)]
    assert texts[lost].count("gone") == 1
    for claimed, returned in ((first, "done"), (second, CANARY * 50)):
        result = store.run(store.jobs.result(claimed.id, "default"))
        assert result is not None
        opened_value = vault.open_value(result.value, result.ref, tenant="default", job_id=claimed.id)
        assert opened_value == returned
    (step,) = store.run(store.steps.list(third.id, "default"))
    assert vault.open_part(step.value, what="step", place="1", **bound) == CANARY
    points = store.run(store.jobs.checkpoints(third.id, "default"))
    assert vault.open_part(points["row"], what="checkpoint", place="row", **bound) == CANARY
    assert points["gone"]["$holdfast"]["key"] == "old"
    other = json.dumps({"$holdfast": step.value["$holdfast"] | {"key": "k9"}}, separators=(",", ":"))
    # No other column of a finished step can be changed by SQL, nor its seal by one of another length.
    for change in (
        """value = '{"$holdfast":{"key":"k9","sealed":"AAAA"}}'""",
        f"value = '{other}', tries = 7",
        "value = '1'",
    ):
        with pytest.raises(Exception, match="cannot be written again"):
            by_hand.execute(f"update step set {change} where job_id = '{third.id}'")
    rows = by_hand.execute("select n, from_key, to_key from resealed")
    by_hand.close()
    assert [tuple(row) for row in rows] == [(1, "old", "new")] * 3
