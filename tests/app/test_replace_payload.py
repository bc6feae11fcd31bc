"""Replacing the payload of a waiting job: only where its kind allows it, recorded and proven by the audit trail."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App, PayloadPolicy, State
from holdfast.app.internals import session_of
from holdfast.engine.retry import fixed
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotFound, Refused
from holdfast.features.audit.model import content_digest
from holdfast.features.payloads.operations import rotate
from holdfast.stores.flow import reading_at_most
from holdfast.stores.vault import is_omitted, new_key
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.stores import new_id
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-26")


def digest(job_id: str, payload: str) -> str:
    return content_digest("payload", job_id, payload).hex()


@pytest.fixture
def ran() -> list[Any]:
    return []


def sending(app: App, ran: list[Any], **rules: Any) -> Any:
    @app.job(retry=holdfast.Retry(max_attempts=2, backoff=fixed(3600)), payload_rules=PayloadPolicy(**rules))
    def send(to: str, times: int = 1) -> None:
        ran.append((to, times))
        if to == "unknown":
            raise ConnectionError("no such address")

    work_off(app)  # a worker stores the declared rules
    return send


@pytest.mark.every_case
@pytest.mark.req("DP-26", "HF-4")
def test_job_runs_with_the_new_payload_and_the_trail_verifies(app: App, ran: list[Any]) -> None:
    send = sending(app, ran, replaceable=True)
    sealed, fresh, failed = send.enqueue("a"), send.enqueue("b"), send.enqueue("unknown")
    app.jobs.reschedule(sealed.id, fresh.id, delay=3600)
    work_off(app)
    assert (failed.state(), ran) == (State.RETRY_WAITING, [("unknown", 1)])
    app.audit.seal()
    verdict = app.jobs.replace_payload(sealed.id, {"to": "ada", "times": 2}, reason="wrong address")
    assert (verdict.refused, verdict.state) == (False, State.QUEUED)
    assert not app.jobs.replace_payload(sealed.id, {"to": "ada", "times": 2}, reason="again").refused
    assert app.jobs.replace_payload(failed.id, {"to": "eve"}, reason="typo").state is State.RETRY_WAITING
    app.jobs.replace_payload(failed.id, {"to": "bob"}, reason="another typo")
    (event,) = [each for each in sealed.history() if each.type == "replace"]
    old, new = '{"to":"a"}', '{"to":"ada","times":2}'
    assert sealed.get().payload == {"to": "ada", "times": 2}
    assert event.name == "job.replace"
    assert (event.actor, event.from_state, event.to_state) == ("tester", State.QUEUED, State.QUEUED)
    assert event.meta == {
        "old": digest(sealed.id, old),
        "new": digest(sealed.id, new),
        "size": len(new),
        "reason": "wrong address",
        "times": 1,
    }
    assert [each.meta["times"] for each in failed.history() if each.type == "replace"] == [1, 2]
    app.jobs.move(sealed.id, first=True)
    app.jobs.replace_payload(sealed.id, {"to": "ada", "times": 3}, reason="more")
    assert [each.type for each in sealed.history()][-3:] == ["replace", "move", "replace"]
    assert app.audit.verify().ok
    app.audit.seal()
    assert app.audit.verify().ok
    app.jobs.reschedule(sealed.id, fresh.id, failed.id)
    work_off(app)
    assert sorted(ran) == [("ada", 3), ("b", 1), ("bob", 1), ("unknown", 1)]
    assert app.audit.verify().ok


@pytest.mark.req("DP-26", "HF-4")
def test_payload_changed_without_a_ledger_event_is_detected(app: App, ran: list[Any]) -> None:
    send = sending(app, ran, replaceable=True)
    job = send.enqueue("a")
    app.audit.seal()
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        app.jobs.replace_payload(job.id, {"to": "b"}, reason="typo")
        with pytest.raises(Exception, match="never change"):
            by_hand.execute('update job set payload = \'{"to":"eve"}\'')
        trigger = "guard_payload_update" if session_of(app).store.embedded else "guard_update"
        if session_of(app).store.embedded:
            by_hand.execute(f"drop trigger {trigger}")
        else:
            by_hand.execute(f"alter table job disable trigger {trigger}")
        by_hand.execute('update job set payload = \'{"to":"a"}\'')
    (flaw,) = app.audit.verify().flaws  # the payload matches the first seal but not the newest event
    assert (flaw.kind, flaw.what) == ("edited", "payload")


def test_invalid_replacements_are_refused(app: App, ran: list[Any]) -> None:
    send, replace = sending(app, ran, replaceable=True, forbidden=["iban"], signal_only=True), app.jobs.replace_payload
    job = send.enqueue("a")
    for payload, error, code in (
        ({"too": 1}, InvalidInput, "invalid_arguments"),
        ({"to": "b", "times": "often"}, InvalidInput, "invalid_arguments"),
        ({"to": object()}, InvalidInput, "invalid_arguments"),
        ({"to": "x" * 2_000_000}, HoldfastError, "payload_"),
    ):
        with pytest.raises(error, match=code):
            replace(job.id, payload, reason="typo")
    for reason in ("", "  ", None):
        with pytest.raises(InvalidInput, match="reason_required"):
            replace(job.id, {"to": "b"}, reason=reason)  # type: ignore[arg-type]
    other = App(session_of(app).store.url, name="other")  # which does not declare the kind
    with closing(other):
        with pytest.raises(Refused, match="payload_forbidden"):
            other.jobs.replace_payload(job.id, {"iban": 1}, reason="typo")
        with pytest.raises(InvalidInput, match="payload_reserved"):
            other.jobs.replace_payload(job.id, {"$holdfast": {"stored": "artifact://x"}}, reason="typo")
    with pytest.raises(NotFound):
        replace(new_id(), {"to": "b"}, reason="typo")
    with pytest.raises(NotFound):
        replace(job.id, {"to": "b"}, reason="typo", tenant="acme")
    with pytest.raises(InvalidInput):
        replace("no id", {"to": "b"}, reason="typo")

    @app.job
    def fixed_one(to: str) -> None: ...

    @app.job(payload_rules=PayloadPolicy(replaceable=True))
    async def stepped(ctx: holdfast.Context, to: str) -> None:
        await ctx.sleep(3600)

    strict, slept, unique = fixed_one.enqueue("a"), stepped.enqueue("a"), send.using(dedupe="skip").enqueue("u")
    app.jobs.reschedule(strict.id, unique.id, delay=3600)
    work_off(app)
    app.payload_rules.set("send", replaceable=True)
    for handle, code in (
        (job, "not_waiting"),
        (strict, "not_replaceable"),
        (slept, "steps_recorded"),
        (unique, "content_key"),
    ):
        with pytest.raises(Conflict, match=code):
            replace(handle.id, {"to": "b"}, reason="typo")
    app.payload_rules.set("*", replaceable=False)  # one rule that forbids it is enough
    later = send.enqueue("later")
    with pytest.raises(Conflict, match="not_replaceable"):
        replace(later.id, {"to": "b"}, reason="typo")
    assert not any(each.type == "replace" for each in later.history())


def test_claimed_job_has_the_payload_the_ledger_recorded_last(new_app: NewApp, ran: list[Any]) -> None:
    """Replacement and claim race: the job runs with the payload of the last ledger event before the claim."""
    app, operator = new_app(), new_app()
    send = sending(app, ran, replaceable=True)
    jobs = [send.enqueue(f"old {n}") for n in range(20)]
    accepted, codes = set[str](), set[str]()

    def replace() -> None:
        for n, job in enumerate(jobs):
            try:
                operator.jobs.replace_payload(job.id, {"to": f"new {n}"}, reason="race")
                accepted.add(f"new {n}")
            except Conflict as refused:
                codes.add(refused.code)

    racing = threading.Thread(target=replace)
    racing.start()
    work_off(app)
    racing.join()
    work_off(app)
    assert {to for to, _ in ran} == accepted | {f"old {n}" for n in range(20) if f"new {n}" not in accepted}
    assert len(ran) == 20
    assert codes <= {"not_waiting"}
    assert app.audit.verify().ok


@pytest.mark.req("DP-26", "DP-21")
def test_replaced_object_is_deleted_and_the_new_one_is_stored(new_app: NewApp, tmp_path: Path, ran: list[Any]) -> None:
    app = new_app(artifacts=tmp_path / "artifacts")
    send = sending(app, ran, replaceable=True, store=True, max_bytes="1KB")
    job = send.enqueue("a" * 2_000)
    (old,) = [each for each in (tmp_path / "artifacts").rglob("*") if each.is_file()]
    app.jobs.replace_payload(job.id, {"to": "b" * 3_000}, reason="longer")
    app.retention.sweep()
    (new,) = [each for each in (tmp_path / "artifacts").rglob("*") if each.is_file()]
    assert new != old
    with pytest.raises(InvalidInput, match="payload_too_large"):
        app.jobs.replace_payload(job.id, {"to": "c" * 70_000_000}, reason="far too long")
    work_off(app)
    assert ran == [("b" * 3_000, 1)]
    with pytest.raises(Conflict):
        app.jobs.replace_payload(job.id, {"to": "c" * 3_000}, reason="too late")
    assert [each for each in (tmp_path / "artifacts").rglob("*") if each.is_file()] == [new]


def resumed(app: App, ran: list[Any], **rules: Any) -> Any:
    @app.job(payload_rules=PayloadPolicy(replaceable=True, **rules))
    def import_file(ctx: holdfast.SyncContext, file: str) -> None:
        ran.append(file)
        if not file.startswith("good"):
            ctx.snooze(3600)

    work_off(app)
    return import_file


@pytest.mark.every_case
@pytest.mark.req("DP-26", "SC-5", "SC-20")
def test_ended_attempts_keep_the_payload_they_ran_with(app: App, ran: list[Any]) -> None:
    job = resumed(app, ran).enqueue("a")
    app.jobs.replace_payload(job.id, {"file": "b"}, reason="no attempt ran with the first payload")
    for payloads in (["c"], ["d", "e"], ["good"]):
        app.jobs.reschedule(job.id)
        work_off(app)
        for payload in payloads:  # no attempt ran with "d"
            app.jobs.replace_payload(job.id, {"file": payload}, reason="typo")
    app.jobs.reschedule(job.id)
    work_off(app)
    assert ran == ["b", "c", "e", "good"]
    assert [attempt.payload["file"] for attempt in job.attempts()] == ran
    with reading_at_most(15):  # of replaced payloads, the newest
        bounded = session_of(app).store.run(session_of(app).store.jobs.attempts(job.id, "default"))
    assert [is_omitted(attempt.payload) for attempt in bounded] == [True, True, False, False]
    assert job.get().payload == {"file": "good"}
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        shown = by_hand.execute("select payload from attempts order by attempt")
        assert [file for (text,) in shown for file in ran if f'"{file}"' in str(text).replace("'", '"')] == ran
        for change in (
            "update replaced_payload set payload = '{}'",
            "update replaced_payload set attempt = 9",
            "delete from replaced_payload",
            "insert into replaced_payload select job_id, tenant, 4, payload, at from replaced_payload",
        ):
            assert by_hand.refusal(change) is not None, change
    assert app.audit.verify().ok
    app.payload_rules.set("import_file", restricted=True)
    assert {attempt.payload for attempt in job.attempts()} == {"[restricted]"}


@pytest.mark.every_case
@pytest.mark.req("DP-26", "SC-20")
def test_a_bounded_read_of_attempts_keeps_the_newest_payloads(app: App, ran: list[Any]) -> None:
    """The query omits the others: they are not decoded. The current payload is that of the job, and read once."""
    job = resumed(app, ran).enqueue("x" * 500)
    for number in range(4):
        app.jobs.reschedule(job.id, delay=0)
        work_off(app)
        if number == 2:
            app.jobs.replace_payload(job.id, {"file": "good" * 200}, reason="typo")

    def shown(**page: Any) -> list[tuple[int, str]]:
        with reading_at_most(1100):
            attempts = session_of(app).store.run(session_of(app).store.jobs.attempts(job.id, "default", **page))
        return [(each.attempt, next(iter(each.payload or {"": 0}))) for each in attempts]

    assert shown() == [(1, "$holdfast"), (2, "file"), (3, "file"), (4, "")]
    assert shown(after=0, limit=2) == [(1, "file"), (2, "file"), (3, "")], "the next one only says that there are more"
    assert shown(after=1, limit=5) == [(2, "file"), (3, "file"), (4, "")]
    assert [len(each.payload["file"]) for each in job.attempts()] == [500, 500, 500, 800]


@pytest.mark.every_case
@pytest.mark.req("DP-26", "DP-21", "DP-16", "HF-4")
def test_sealed_payload_of_an_ended_attempt_is_rotated_and_stays_stored_until_its_job_is_cleaned(
    new_app: NewApp, tmp_path: Path, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored() -> int:
        return sum(each.is_file() for each in (tmp_path / "artifacts").rglob("*"))

    old, new = (f"{name}:{new_key()}" for name in ("k1", "k2"))
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app(artifacts=tmp_path / "artifacts")
    import_file = resumed(app, ran, store=True, max_bytes="1KB")
    large, small = import_file.enqueue("a" * 2_000), import_file.enqueue("a")
    work_off(app)
    for job, n in ((large, 2_000), (small, 1)):
        app.jobs.replace_payload(job.id, {"file": "good" + "b" * n}, reason="typo")
    app.audit.seal()
    app.retention.sweep()
    assert stored() == 2
    monkeypatch.setenv("HOLDFAST_KEYS", f"{new},{old}")
    rotated = new_app(artifacts=tmp_path / "artifacts")
    done = rotate(session_of(rotated), session_of(rotated).vault)
    assert (done.resealed, done.unread, done.passed) == (4, 0, 0)
    assert rotate(session_of(rotated), session_of(rotated).vault).resealed == 0
    rotated.retention.sweep()
    assert stored() == 2
    assert rotated.audit.verify().ok
    rotated.job("import_file")(import_file.function)
    rotated.jobs.reschedule(large.id, small.id)
    work_off(rotated)
    rotated.retention.set(state="succeeded", clean_after="1h")
    session_of(rotated).store.run(session_of(rotated).store.clock.set(timedelta(hours=9), None))
    rotated.retention.sweep()
    assert stored() == 0
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        assert by_hand.execute("select * from replaced_payload") == []


@pytest.mark.every_case
@pytest.mark.req("DP-26")
def test_payload_under_a_checkpoint_is_not_replaced(app: App, ran: list[Any]) -> None:
    @app.job(payload_rules=PayloadPolicy(replaceable=True))
    def import_rows(ctx: holdfast.SyncContext, file: str) -> None:
        ctx.progress(0.5) if file == "shown" else ctx.checkpoint.save({"row": 7})
        ctx.snooze(3600)

    saved, shown = import_rows.enqueue("a.csv"), import_rows.enqueue("shown")
    work_off(app)
    with pytest.raises(Conflict, match="checkpoints_recorded"):
        app.jobs.replace_payload(saved.id, {"file": "b.csv"}, reason="typo")
    app.jobs.replace_payload(shown.id, {"file": "b.csv"}, reason="progress is not a checkpoint")


@pytest.mark.every_case
@pytest.mark.req("DP-26", "JF-20")
def test_payload_index_follows_a_replacement(app: App, ran: list[Any]) -> None:
    job = sending(app, ran, replaceable=True).using(delay=3600).enqueue("ada")
    app.jobs.add_payload_index("payload.to")
    app.jobs.replace_payload(job.id, {"to": "bob"}, reason="typo")
    assert [[each.id for each in app.jobs.search(f"payload.to:{to}").jobs] for to in ("ada", "bob")] == [[], [job.id]]
