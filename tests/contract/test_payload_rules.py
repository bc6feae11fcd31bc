"""Payload rules (DP-4): forbidden keys, sizes and what readers may see, enforced by the database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.engine.job import EVERY_TENANT, References
from holdfast.engine.payload import canonical
from holdfast.engine.states import State
from holdfast.errors import Refused
from holdfast.features.assembly import Store
from holdfast.features.payloads.model import FORBIDDEN, HIDDEN, PayloadRule, RuleDraft, effective
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.stores import BROKEN, TENANT, apply, decide_on, enqueue, job, put, put_one, spec, take, tries

CANARY = "canary-7f3a"


def rule(store: Store, kind: str = "*", *, tenant: str = TENANT, **options: Any) -> PayloadRule:
    return store.run(store.payload_rules.set(RuleDraft.of(kind, **options), "ada", tenant))


def rules(store: Store, tenant: str = TENANT) -> list[PayloadRule]:
    return store.run(store.payload_rules.list(tenant))


def count(store: Store) -> int:
    return len(store.run(store.jobs.list(JobFilter(tenant="*", limit=1000))))


@pytest.mark.req("DP-4")
def test_forbidden_key_is_refused_at_any_depth_and_in_any_case(store: Store) -> None:
    put_one(store, payload={"body": "as long as no rule is set"})
    rule(store, "mail.send", signal_only=True)
    hidden = {
        "$.Body": {"Body": CANARY},
        "$.a.PASSWORD": {"a": {"PASSWORD": CANARY}},
        "$.rows[1].x[0].token": {"rows": [1, {"x": [{"token": CANARY}]}]},
        '$["a b"].ssn': {"a b": {"ssn": CANARY}},
    }
    for path, payload in hidden.items():
        with pytest.raises(Refused, match="payload_forbidden") as refused:
            enqueue(store, spec(payload={"fine": 1}), spec(payload=payload))
        assert f"mail.send has a forbidden key at {path}:" in refused.value.message
        assert CANARY not in str(refused.value)
    # The whole batch was refused; values and parts of keys are allowed; another kind has another rule.
    assert count(store) == 1
    put(store, spec(payload={"note": "body", "tokens": 3, "body_ref": "s3://x"}), spec("other", payload={"body": 1}))
    rule(store, "other", signal_only=True, forbidden=["Iban"])
    put_one(store, "other", payload={"body": 1})
    with pytest.raises(Refused, match="payload_forbidden"):
        put_one(store, "other", payload=[[{"IBAN": 1}]])


@pytest.mark.req("DP-4", "DP-2")
def test_rules_apply_to_hand_written_inserts(store: Store, by_hand: ByHand) -> None:
    rule(store, "mail.send", signal_only=True, max_bytes=300)
    insert = "insert into job (tenant, kind, payload) values ('default', 'mail.send', '{}')"
    for payload in (
        json.dumps({"x": {"secret": CANARY}}),
        '{"x": {"s\\u0065cret": "canary-7f3a"}}',
        '{"x": {"secret": "canary-7f3a"}, "x": 1}',  # a duplicate key is stored twice
        json.dumps([[[{"Raw": CANARY}]]]),
    ):
        refusal = by_hand.refusal(insert.format(payload)) or ""
        assert "forbid" in refusal, payload
        assert CANARY not in refusal
    assert " rule " in (by_hand.refusal(insert.format(json.dumps({"x": "y" * 300}))) or "")
    assert by_hand.refusal(insert.format('{"secret santa": 1}')) is None
    assert count(store) == 1


@pytest.mark.req("DP-4")
def test_rules_of_tenants_kinds_and_programs_all_apply(store: Store) -> None:
    rule(store, signal_only=True, tenant="acme")
    rule(store, "import", max_bytes=400, tenant=EVERY_TENANT)
    rule(store, "import", max_bytes=4000, tenant="acme")
    declare = store.payload_rules.declare
    store.run(declare("shop", [RuleDraft.of("import", signal_only=True, forbidden=["iban"])], "ada", EVERY_TENANT))
    for tenant, payload in {
        "acme body": {"body": 1},
        "acme iban": {"iban": 1},
        "other iban": {"iban": 1},
        "acme size": {"a": "x" * 500},
        "other size": {"a": "x" * 500},
    }.items():
        with pytest.raises(Refused, match="payload_"):
            put_one(store, "import", tenant=tenant.split()[0], payload=payload)
    put_one(store, "import", tenant="other", payload={"body": 1})
    assert [(each.tenant, each.kind, each.declared_by) for each in rules(store, "acme")] == [
        ("*", "import", ""),
        ("*", "import", "shop"),
        ("acme", "*", ""),
        ("acme", "import", ""),
    ]
    assert [each.tenant for each in rules(store, "other")] == ["*", "*"]
    # Rules that a program no longer declares are removed; those of others stay.
    store.run(declare("shop", [], "ada", EVERY_TENANT))
    put_one(store, "import", tenant="other", payload={"iban": 1})
    assert store.run(store.payload_rules.remove("*", "", "ada", "acme"))
    assert not store.run(store.payload_rules.remove("*", "", "ada", "acme"))
    put_one(store, "import", tenant="acme", payload={"body": 1})


@pytest.mark.req("CX-5")
def test_of_several_approvals_the_operators_then_the_most_specific_counts(store: Store, by_hand: ByHand) -> None:
    for tenant, kind, program in (
        ("!acme", "!pay", ""),  # names that sort before an asterisk
        ("!acme", "*", ""),
        ("*", "!pay", ""),
        ("*", "*", ""),
        ("!acme", "!pay", "b"),
        ("!acme", "*", "a"),
        ("*", "!pay", "a"),
        ("*", "*", "A"),
    ):
        draft = RuleDraft.of(kind, requires_approval={"approvers": [f"{tenant} {kind} {program}"]})
        done = store.payload_rules.declare(program, [draft], "ada", tenant) if program else None
        store.run(done or store.payload_rules.set(draft, "ada", tenant))
    found = rules(store, "!acme")
    while found:
        counts = effective(found, "!acme", "!pay").requires_approval
        first = sorted(found, key=lambda r: (r.declared_by != "", r.tenant == "*", r.kind == "*"))[0]
        assert counts == canonical(first.requires_approval)
        if not store.embedded:
            (row,) = by_hand.execute("select (rule_for('!acme', '!pay')).requires_approval")
            assert row[0] == first.requires_approval
        assert store.run(store.payload_rules.remove(first.kind, first.declared_by, "ada", first.tenant))
        found = rules(store, "!acme")


@pytest.mark.req("DP-4")
def test_restricted_payload_is_visible_to_workers_only(store: Store, by_hand: ByHand) -> None:
    open_one = put_one(store, "open", payload={"who": CANARY})
    rule(store, "heal", restricted=True, tenant=EVERY_TENANT)
    hidden = put_one(store, "heal", queue="q", payload={"who": CANARY})
    assert job(store, hidden).payload == HIDDEN
    assert job(store, open_one).payload == {"who": CANARY}
    listed = store.run(store.jobs.list(JobFilter(tenant=TENANT)))
    assert {each.kind: each.payload for each in listed} == {"heal": HIDDEN, "open": {"who": CANARY}}
    chained = store.run(store.jobs.chain(hidden, TENANT))
    assert [each.payload for each in chained] == [HIDDEN]
    seen = by_hand.execute("select payload from jobs where kind = 'heal'")
    assert CANARY not in str(seen)
    assert json.loads(take(store, queues=("q",)).payload) == {"who": CANARY}


@pytest.mark.req("DP-4")
def test_jobs_accepted_before_a_rule_still_run_and_retry(store: Store) -> None:
    first = put_one(store, payload={"body": 1}, retry=tries(2), retry_as="new_job")
    rule(store, signal_only=True)
    claimed = take(store)
    assert apply(store, claimed.lease, decide_on(claimed, BROKEN)) == []
    tried = store.run(store.jobs.chain(first, TENANT))
    assert [each.state for each in tried] == [State.FAILED, State.QUEUED]


@pytest.mark.req("DP-4")
def test_references_are_stored_and_copied_to_retries(store: Store) -> None:
    given = References("s3://in/7", None, "vault:9")
    first = put_one(store, references=given, retry=tries(2), retry_as="new_job")
    plain = put_one(store, queue="other")
    assert store.run(store.jobs.references(first, TENANT)) == given
    assert store.run(store.jobs.references(first, "other")) == References()
    assert store.run(store.jobs.references(plain, TENANT)) == References()
    claimed = take(store)
    apply(store, claimed.lease, decide_on(claimed, BROKEN))
    retried = store.run(store.jobs.chain(first, TENANT))[-1].id
    assert retried != first
    assert store.run(store.jobs.references(retried, TENANT)) == given
    # A duplicate by key keeps the references of the first job.
    keyed = put_one(store, key="k", references=References(source_ref="a"))
    (again,) = enqueue(store, spec(key="k", references=References(source_ref="b")))
    assert (again.id, again.created) == (keyed, False)
    assert store.run(store.jobs.references(keyed, TENANT)).source_ref == "a"


@pytest.mark.req("DP-4")
def test_default_forbidden_keys_equal_those_in_the_database(store: Store, by_hand: ByHand) -> None:
    by_hand.execute(
        "insert into payload_rule (tenant, kind, signal_only, set_by, created_at, updated_at)"
        " select 'default', 'x', (1 = 1), 'ada', now, now from present"
    )
    assert [each.forbidden for each in rules(store)] == [FORBIDDEN]
    with pytest.raises(Refused, match="payload_forbidden"):  # it applies at once
        put_one(store, "x", payload={"token": 1})
