"""The sealed ledger (HF-4): whole blocks in a chain, in commit order, by any process, never forked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from random import Random

import psycopg
import pytest

from holdfast.errors import Conflict, InvalidInput
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.model import GENESIS, Anchor, Ranges, Seal, digest_of, encoded, leaves, normalized_json
from holdfast.features.limits.model import Rule
from holdfast.stores.flow import Flow, Statement, Steps
from tests.support.direct_sql import ByHand
from tests.support.features import VERSION, anchor, newest, seal, verify
from tests.support.stores import BROKEN, put, put_one, spec, work

pytestmark = pytest.mark.req("HF-4", "CX-4")


def test_blocks_form_a_chain_and_cover_every_event_once(store: Store, by_hand: ByHand) -> None:
    assert seal(store) == 0
    put(store, *(spec(payload={"ä": n}) for n in range(5)))
    work(store, BROKEN, want=2)
    work(store, want=3)
    events = [row[0] for row in by_hand.execute("select seq from event order by seq")]
    assert seal(store, want=4) == len(events)

    result: list[Seal] = []
    numbers: list[int] = []
    while (block := store.run(store.audit.block(result[-1] if result else None))) is not None:
        result.append(block.seal)
        numbers += [number for number, _ in leaves(block.seal.events)]
    assert numbers == events
    assert [each.number for each in result] == list(range(1, len(result) + 1))
    assert [each.event_count for each in result[:-1]] == [4] * (len(result) - 1)
    assert [each.previous for each in result] == [GENESIS, *(each.digest for each in result[:-1])]
    assert {each.version for each in result} == {VERSION}
    report = verify(store)
    assert (report.ok, report.seals, report.events, report.unsealed) == (True, len(result), len(events), 0)
    put_one(store)
    assert verify(store).unsealed == 1
    assert verify(store, start=result[0]).events == len(events) - 4
    assert seal(store) == 1
    assert verify(store, [anchor(store), Anchor(1, result[0].digest)]).ok


def test_digest_is_computed_as_documented(store: Store, by_hand: ByHand) -> None:
    """Computed from the rows alone, as another tool would."""
    job_id = put_one(store, "mail.send")
    work(store, BROKEN)
    seal(store)
    block = store.run(store.audit.block(None))
    assert block is not None
    fields = [*block.events[0]]
    assert fields[1:8] == [job_id, "default", "mail.send", "enqueue", None, "queued", 0]
    text = "5:event" + "".join("-" if f is None else f"{len(str(f).encode())}:{f}" for f in fields)
    assert dict(leaves(block.seal.events))[int(fields[0] or 0)] == hashlib.sha256(text.encode()).digest()
    failed = next(item for item in block.events if item[4] == "fail")
    assert failed[10] == '{"error_code": "broken", "error_message": "it broke"}'  # the same text on both stores
    (kept,) = by_hand.execute("select digest from seal")
    one = block.seal
    head = (1, GENESIS, one.event_count, one.action_count, one.floor, one.action_floor, one.base, one.snapshot)
    whole = encoded(("seal", *head, one.sealed_at, one.version, one.xid)) + one.events + one.actions
    payload = hashlib.sha256(f"7:payload36:{job_id}2:{{}}".encode()).digest()
    assert one.contents == int(fields[0] or 0).to_bytes(8, "big") + payload
    whole += b"8:contents1:11:0" + one.contents
    assert kept[0] == hashlib.sha256(whole).hexdigest()


def test_normal_form_equals_jsonb_text(postgres_url: str) -> None:
    texts = [
        '{"bb":1,"a":[1,2.50,-0.5e-3,1e23,true,null],"c":{"é":"\\u00e9\\n\\u0001\\"\\\\/","ab":"x"}}',
        '{"z":"\\ud83d\\ude00","y":{},"x":[],"w":[{"q":1,"p":12345678901234567890}]}',
        '{"":"","abc":"\\t\\b\\f\\r","ab\\u007f":1}',
    ]
    with closing(psycopg.connect(postgres_url)) as connection:
        for text in texts:
            assert connection.execute("select %s::jsonb::text", (text,)).fetchall() == [(normalized_json(text),)]
    assert normalized_json('{"a":1,"a":2}') != normalized_json('{"a":2}')  # a duplicate key cannot hide the first
    assert normalized_json("not json") == "not json"
    assert normalized_json(None) is None


def test_server_and_library_compute_the_same_hashes(postgres_url: str) -> None:
    meta = {"reason": 'tab\tquote" ünïcode \U0001f600', "n": [1, 1.5, None, {"b": True, "aa": "\x01"}]}
    with closing(open_store(postgres_url)) as store, closing(psycopg.connect(postgres_url)) as raw:
        put(store, *(spec(f"kind:{n}-ü") for n in range(3)))
        raw.execute("set search_path = holdfast")
        raw.execute("select enter('*')")
        raw.execute("alter table event disable trigger user")
        raw.execute("update event set meta = %s, actor = ''", (json.dumps(meta),))
        raw.commit()
        seal(store)
        block = store.run(store.audit.block(None))
    assert block is not None
    assert [digest_of("event", item) for item in block.events] == [digest for _, digest in leaves(block.seal.events)]
    assert block.seal.is_intact()


def test_concurrent_sealing_makes_one_chain(store_url: str, store: Store) -> None:
    put(store, *(spec() for _ in range(60)))
    others = [open_store(store_url) for _ in range(3)]
    barrier = threading.Barrier(3)
    failures: list[Exception] = []

    def run(one: Store) -> None:
        barrier.wait()
        try:
            for _ in range(40):
                one.run(one.audit.seal(VERSION, 3))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in others:
        one.close()
    seal(store)
    report = verify(store)
    assert (failures, report.flaws, report.events, report.unsealed) == ([], (), 60, 0)


def test_late_commit_is_sealed_in_a_later_block(postgres_url: str) -> None:
    with (
        closing(open_store(postgres_url)) as store,
        closing(psycopg.connect(postgres_url)) as early,
        closing(psycopg.connect(postgres_url)) as late,
    ):
        for each in (early, late):
            each.execute("set search_path = holdfast")
        early.execute("select enqueue('early')")
        late.execute("select enqueue('late')")
        put_one(store, "between")
        assert seal(store) == 1
        early.commit()
        assert seal(store) == 1
        assert verify(store).ok
        put(store, *(spec() for _ in range(5)))
        assert seal(store, want=2) == 5
        late.commit()
        assert (verify(store).ok, verify(store).events) == (True, 7)
        assert seal(store) == 1
        block = store.run(store.audit.block(store.run(store.audit.get_seal(newest(store).number - 1))))
        assert block is not None
        assert (block.events[0][3], block.seal.floor > (block.seal.last_seq or 0)) == ("late", True)
        report = verify(store)
        assert (report.ok, report.events, seal(store)) == (True, 8, 0)


def test_database_restored_before_it_had_epochs_continues(postgres_url: str) -> None:
    """Its server restarted the transaction ids: an old snapshot would treat all later events as already seen."""
    with closing(open_store(postgres_url)) as store, closing(psycopg.connect(postgres_url)) as raw:
        put(store, spec(), spec())
        store.run(store.ledger.save_cursor("billing", "2;950000000000:950000000000:", None, "*"))
        seal(store)
        raw.execute("set search_path = holdfast")
        raw.execute("alter table seal disable trigger user")
        raw.execute("update seal set snapshot = '900000000000:900000000000:', xid = 900000000000")
        raw.execute("alter table event disable trigger user")
        raw.execute("update event set xid = xid + 800000000000")
        raw.execute("alter table event enable trigger user")
        raw.execute("drop table ledger_epoch")
        raw.execute("delete from migration where name = '0004_positions'")
        raw.commit()
        store.migrate()
        jobs = put(store, spec(), spec(), spec())
        cursor = store.run(store.ledger.cursor("billing", "*"))
        assert [event.job_id for event in store.run(store.ledger.read(cursor, 10, "*"))] == jobs
        assert seal(store) == 3
        put_one(store)
        assert [seal(store), seal(store)] == [1, 0]
        assert verify(store).unsealed == 0


def test_seals_cannot_be_changed_removed_or_forged(store: Store, by_hand: ByHand) -> None:
    put(store, spec(), spec())
    store.run(store.limits.set(Rule("queue", "mail", 5), "ada", "default"))
    seal(store)
    before = by_hand.contents()
    columns = ", ".join(Seal.__slots__)
    fork = f"insert into seal ({columns}) select {columns.replace('number', 'number + {}')} from seal"
    attempts: list[Callable[[], str | None]] = [
        lambda: by_hand.refusal("update seal set digest = previous"),
        lambda: by_hand.refusal("delete from seal"),
        lambda: by_hand.refusal(fork.format(0)),
        lambda: by_hand.refusal(fork.format(1)),  # continues the wrong seal
        lambda: by_hand.refusal(fork.format(5)),
        lambda: by_hand.refusal("update action set actor = 'mallory'"),
        lambda: by_hand.refusal("delete from action"),
        lambda: by_hand.refusal(
            "insert into action (tenant, at, actor, type, subject, name)"
            " select 'default', (select now from present), 'mallory', 'add', 'limit', 'x'"
        ),
    ]
    if by_hand.name == "sqlite":
        attempts.append(lambda: by_hand.refusal(fork.format(0).replace("insert", "insert or replace")))
    refusals = [attempt() for attempt in attempts]
    assert [text for text in refusals if text is None] == [], refusals
    assert by_hand.contents() == before


def test_forked_chain_is_refused_with_its_code(store: Store) -> None:
    put_one(store)
    assert seal(store) == 1
    columns = ", ".join(Seal.__slots__)
    table = "holdfast_seal" if store.embedded else "holdfast.seal"

    def steps() -> Steps[None]:
        if not store.embedded:
            yield Statement("select holdfast.enter('*')")
        yield Statement(
            f"insert into {table} ({columns}) select {columns.replace('number', 'number + 7')} from {table}"
        )

    with pytest.raises(Conflict) as refused:
        store.run(Flow(steps))
    assert refused.value.code == "chain_broken"


def test_numbers_of_purged_events_are_stored_as_ranges() -> None:
    assert Ranges.text([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"
    assert Ranges("1-3,7,9-10").of([0, 2, 3, 4, 7, 8, 10, 11]) == {2, 3, 7, 10}
    assert (Ranges.text([]), Ranges("").of([1])) == ("", set())
    values: list[object] = [{"events": "1-3,7"}, {"events": "all"}, {}, None, []]
    assert [Ranges.purged(each) for each in values] == ["1-3,7", "", "", "", ""]
    with pytest.raises(InvalidInput) as bad:
        Anchor.of("seven")
    assert bad.value.code == "invalid_anchor"
    assert Anchor.of(f"7:{'a' * 64} sealed today") == Anchor(7, "a" * 64)


@pytest.mark.parametrize("far", [False, True])
def test_every_event_is_sealed_once_in_any_commit_order(postgres_url: str, far: bool) -> None:
    """Random transactions commit and roll back, with seals of a few events in between.

    The second case simulates a long transaction, where late events are searched in another way.
    """
    random = Random(7)  # this seed has transactions that commit late
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(postgres_url)))
        raw = [stack.enter_context(closing(psycopg.connect(postgres_url))) for _ in range(4)]
        if far:
            with psycopg.connect(postgres_url, autocommit=True) as owner:
                ((text,),) = owner.execute("select pg_get_functiondef('holdfast.seal_ledger'::regproc)").fetchall()
                assert "< 20000" in text
                owner.execute(text.replace("< 20000", "< 0").encode())
        for _ in range(120):
            one = random.choice(raw)
            match random.randrange(6):
                case 0 | 1 | 2:
                    one.execute("select holdfast.enqueue('work')")
                case 3:
                    one.commit()
                case 4:
                    one.rollback() if random.random() < 0.3 else one.commit()
                case _:
                    store.run(store.audit.seal(VERSION, random.randrange(1, 4)))
        for one in raw:
            one.commit()
        seal(store, want=3)
        sealed: list[int] = []
        last: Seal | None = None
        while (block := store.run(store.audit.block(last))) is not None:
            last = block.seal
            sealed += [number for number, _ in leaves(last.events)]
        raw[0].execute("select holdfast.enter('*')")
        there = [row[0] for row in raw[0].execute("select seq from holdfast.event order by seq")]
        assert (sorted(sealed), verify(store).flaws) == (there, ())
        assert sealed != there, "no transaction was late, and this proves nothing"
