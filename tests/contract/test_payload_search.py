"""Search jobs by keys of their payloads (JF-20): matches, hidden payloads, and bounded reads."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from holdfast.engine.states import State
from holdfast.errors import Refused
from holdfast.features.assembly import Store, open_store
from holdfast.features.jobs import search
from holdfast.features.jobs.search import NEVER, PayloadTerm, Search, SearchPage, matching, parse
from holdfast.features.payloads.model import RuleDraft
from holdfast.stores.requests import JobFilter
from tests.support.direct_sql import ByHand
from tests.support.features import keep, sweep
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.stores import forward, put, put_one, spec, work

pytestmark = pytest.mark.req("JF-20")

SEALED = {"$holdfast": {"key": "k1", "sealed": "AAAA"}}
PAYLOADS: dict[str, Any] = {
    "seven": {"order_id": 7, "customer": {"id": "c-9", "name": 'Ada "the first" O\'Neil'}},
    "text": {"order_id": "7", "flags": [{"on": True}, None, 1.5]},
    "other": {"order_id": 77, "customer": {"id": None}},
    "odd": {"a.b": {"x:y": "with blank"}, "": 1, "ключ": "значение", "back\\slash": "\\"},
    "big": {"order_id": 10**30, "long": "x" * 5000},
    "scalar": {"order_id": {"nested": 7}},
}


def find(store: Store, text: str, tenant: str = "default", **how: Any) -> SearchPage:
    return store.run(matching(store, parse(text, NEVER), tenant, how.pop("limit", 50), **how))


@pytest.fixture
def ids(store: Store) -> dict[str, str]:
    return {name: put_one(store, payload=payload) for name, payload in PAYLOADS.items()}


def index(store: Store, path: str) -> None:
    assert store.run(store.jobs.fill_payload_index(path.split(".")[1:], None)) is None


@pytest.mark.parametrize("indexed", [False, True], ids=["examined", "indexed"])
def test_jobs_are_found_by_keys_of_their_payloads(store: Store, ids: dict[str, str], indexed: bool) -> None:
    if indexed:
        index(store, "payload.order_id")
        index(store, "payload.customer.id")
        assert store.run(store.jobs.payload_indexes()) == ["payload.customer.id", "payload.order_id"]
    put_one(store, payload=PAYLOADS["seven"], tenant="another")
    for text, names in {
        "payload.order_id:7": ["text", "seven"],
        "payload.order_id:77": ["other"],
        f"payload.order_id:{10**30}": ["big"],
        "payload.order_id:nested": [],
        "payload.order_id.nested:7": ["scalar"],
        "payload.customer.id:c-9": ["seven"],
        "payload.customer.id:null": ["other"],
        "payload.customer.id:c-9 payload.order_id:77": [],
        "payload.customer.id:c-9 payload.order_id:7 state:queued kind:mail.send": ["seven"],
        "payload.order_id:7 state:succeeded": [],
        "payload.order_id:7 since:2020-01-01 until:2021-01-01": [],
        r'payload.customer.name:"Ada \"the first\" O' + "'" + 'Neil"': ["seven"],
        "payload.flags.0.on:true": ["text"],
        "payload.flags.1:null": ["text"],
        "payload.flags.2:1.5": ["text"],
        "payload.flags.9:1": [],
        'payload."a.b"."x:y":"with blank"': ["odd"],
        'payload."":1': ["odd"],
        "payload.ключ:значение": ["odd"],
        r'payload."back\\slash":"\\"': ["odd"],
        "payload.Order_id:7": [],
        "payload.flags.-1:1.5": [],
        "payload.order_id.0:7": [],
        "payload.long.0:x": [],
        "payload.order_id:07": [],
        "payload.missing:1": [],
    }.items():
        answer = find(store, text)
        assert [job.id for job in answer.jobs] == [ids[name] for name in names], text
        assert answer.next is None
        assert all(job.payload is None for job in answer.jobs), "the search returns no payloads"
    assert {job.tenant for job in find(store, "payload.order_id:7", "*").jobs} == {"default", "another"}
    first = find(store, "payload.order_id:7", limit=1)
    assert [job.id for job in first.jobs] == [ids["text"]]
    assert [job.id for job in find(store, "payload.order_id:7", before=first.next).jobs] == [ids["seven"]]


@pytest.mark.parametrize("indexed", [False, True], ids=["examined", "indexed"])
def test_hidden_payloads_never_match(store: Store, by_hand: ByHand, indexed: bool) -> None:
    """Restricted, sealed and unreadable payloads never match, and do not break the search."""
    if indexed:
        index(store, "payload.pin")
    sealed, _, plain = put(
        store, spec(payload={**SEALED}), spec("heal", payload={"pin": 4711}), spec(payload={"pin": 4711})
    )
    assert len(find(store, "payload.pin:4711").jobs) == 2
    store.run(store.payload_rules.set(RuleDraft.of("heal", restricted=True), "ada", "default"))
    assert [job.id for job in find(store, "payload.pin:4711").jobs] == [plain]
    for text in ("payload.$holdfast.key:k1", "payload.$holdfast.sealed:AAAA", 'payload."[restricted]":true'):
        assert find(store, text).jobs == [], text
    broken = [f'{{"pin": {"[" * 5000 + "]" * 5000}}}']
    if by_hand.name == "sqlite":
        by_hand.execute("pragma ignore_check_constraints = on")
        for (name,) in by_hand.execute(
            "select name from sqlite_schema where type = 'trigger' and tbl_name = 'holdfast_job'"
        ):
            by_hand.execute(f"drop trigger {name}")
        broken += ['{"pin": 4711', "\x00", ""]
    else:
        by_hand.execute("alter table job disable trigger user")
    value = ":text" if by_hand.name == "sqlite" else "cast(:text as json)"
    for text in broken:
        by_hand.execute(f"update job set payload = {value} where id = :id", {"text": text, "id": sealed})
        assert [job.id for job in find(store, "payload.pin:4711").jobs] == [plain]


def test_search_without_an_index_is_bounded_and_returns_a_cursor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (oldest,) = put(store, spec(payload={"n": -1}))
    put(store, *(spec(payload={"n": n}) for n in range(450)))
    monkeypatch.setattr(search, "EXAMINED_JOBS", 200)
    answer, seen = find(store, "payload.n:-1"), 1
    while answer.next is not None:
        assert answer.jobs == []
        answer, seen = find(store, "payload.n:-1", before=answer.next), seen + 1
    assert ([job.id for job in answer.jobs], seen) == ([oldest], 3)
    index(store, "payload.n")
    answer = find(store, "payload.n:-1")
    assert ([job.id for job in answer.jobs], answer.next) == ([oldest], None), "an index finds it at once"


def test_payload_index_is_used_listed_and_removed(store: Store, by_hand: ByHand) -> None:
    put(store, *(spec(payload={"order": {"id": n}}) for n in range(300)))
    index(store, "payload.order.id")
    entries = "select count(*) from job_tag where tag like 'payload:%'"
    if by_hand.name == "sqlite":
        from holdfast.stores.sqlite.jobs import _BY_PAYLOAD, _key

        text = _BY_PAYLOAD.format(key=_key(("order", "id")))
        params = {"value": "7", "any": 0, "tenant": "default", "before": None, "most": 10}
        plan = str(by_hand.execute(f"explain query plan {text}", params))
        assert "USING INDEX holdfast_payload_" in plan, plan
    else:
        plan = str(
            by_hand.execute(
                "explain select t.job_id from job_tag t where t.tenant = 'default'"
                " and t.tag = payload_tag('order.id', '7') order by t.job_id desc limit 10"
            )
        )
        assert "Index Only Scan Backward using job_tag_pkey" in plan, plan
        assert by_hand.execute(entries) == [(300,)]
        put_one(store, payload={"order": {"id": "new"}})
        assert by_hand.execute(entries) == [(301,)]
        assert by_hand.execute("select count(*) from job_tag where tag = 'payload:' || md5('order.id:7')") == [(0,)]
    work(store)  # cleaned jobs do not match, and leave no entry behind
    keep(store, clean="1h")
    forward(store, 7200)
    assert sweep(store)["clean"] == 1
    gone = next(job for job in store.run(store.jobs.list(JobFilter(tenant="default", state=State.CLEANED))))
    assert gone.payload == {}
    assert find(store, "payload.order.id:0").jobs == []
    if by_hand.name != "sqlite":
        assert by_hand.execute(entries) == [(300,)]
    store.run(store.jobs.remove_payload_index(("order", "id")))
    assert store.run(store.jobs.payload_indexes()) == []
    if by_hand.name != "sqlite":
        assert by_hand.execute(entries) == [(0,)]
        assert "no index on payload" in (by_hand.refusal("select jobs_by_payload('order.id', '7')") or "")


def test_roles_can_search_and_only_the_owner_can_index(owned_databases: OwnedDatabases) -> None:
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as owner:
        job = put_one(owner, payload={"order_id": 7}, tenant="acme")
        put_one(owner, payload={"order_id": 7}, tenant="umbrella")
        with closing(open_store(as_role(url, "holdfast_viewer"))) as viewer:
            assert [each.id for each in find(viewer, "payload.order_id:7", "acme").jobs] == [job]
            with pytest.raises(Refused):
                index(viewer, "payload.order_id")
            index(owner, "payload.order_id")
            assert [each.id for each in find(viewer, "payload.order_id:7", "acme").jobs] == [job]


def test_terms_compare_with_the_json_text_of_values() -> None:
    for value, scalar, fits in [
        *[("true", "true", True), ("1", "true", False), ("0", "false", False), ("null", "null", True)],
        *[("1.0", "1.0", True), ("1", "1.0", False), ("100.0", "1e2", True), ("9", "9" * 5000, False)],
        *[("x", '"x"', True), ("x", "[1]", False), ("x", None, False), ("\x01", '"\\u0001"', True)],
    ]:
        assert PayloadTerm(("a",), value).fits(scalar) is fits, (value, scalar)
    assert Search({}, (), (PayloadTerm(("a b",), 'q"'),)).examines
