"""Payloads through the public API: declared rules, restricted kinds, references, stored and encrypted values."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App, PayloadPolicy, State
from holdfast.app.internals import session_of
from holdfast.engine.job import EVERY_TENANT, References
from holdfast.engine.retry import fixed
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.jobs.store import story
from holdfast.features.payloads.model import HIDDEN, WITHHELD
from holdfast.stores.vault import new_key
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.waiting import until

CANARY, KEY = "canary-7f3a9c", "kanari-55ab1c"


def everything(app: App) -> str:
    """Everything the database holds about jobs except payloads, results and values that handlers saved."""
    by_hand = open_by_hand(session_of(app).store.url)
    try:
        tables = ("event", "job_state", "approval", "vote", "artifact", "content", "idempotency")
        return json.dumps([by_hand.execute(f"select * from {table}") for table in tables], default=str)
    finally:
        by_hand.close()


@pytest.mark.req("DP-4")
def test_restricted_payload_appears_nowhere(app: App, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    @app.job(retry=holdfast.Retry(max_attempts=1), payload_rules=PayloadPolicy(restricted=True))
    def heal(ctx: holdfast.SyncContext, patient: dict[str, Any], number: int) -> str:
        seen.append((patient, number))
        ctx.progress(0.5, f"at {patient['name']}")
        ctx.log.warning("looking at %s, %s", patient, number)
        ctx.checkpoint.save(patient, "at")
        if number == 77_001_234:
            raise ValueError(f"cannot heal {patient['name']} ({number}): {patient!r}")
        return str(patient["name"])

    @app.job(requires_approval=True, payload_rules=PayloadPolicy(restricted=True))
    async def operate(patient: str) -> None: ...

    caplog.set_level(logging.DEBUG)
    done = heal.enqueue({"name": CANARY, "notes": [CANARY + "-2"]}, 5)
    failed = heal.enqueue({"name": CANARY, KEY: True}, 77_001_234)
    waiting = operate.enqueue(CANARY)
    app.run_worker(burst=True)
    assert len(seen) == 2  # the handler gets the payload
    assert seen[0][0]["name"] == CANARY
    assert done.result(5) == CANARY  # and the caller gets the result
    assert waiting.state() is State.WAITING_FOR_APPROVAL
    assert failed.get().error_code == "ValueError"
    assert failed.get().error_message == WITHHELD
    (tried,) = session_of(app).run(session_of(app).store.jobs.attempts(failed.id, "default"))
    assert f", in {heal.name}" in str(tried.traceback), "the location is kept, not the message"
    assert "Traceback" not in str(tried.traceback)
    shown = [caplog.text, everything(app)]
    for handle in (done, failed, waiting):
        details = session_of(app).run(story(session_of(app).store, handle.id, "default"))
        assert details is not None
        assert details.job.payload == HIDDEN
        shown += [repr(details), repr(app.jobs.why(handle.id)), repr(app.jobs.list()), repr(handle.history())]
        shown += [repr(handle.steps()), repr(handle.checkpoints()), repr(handle.attempts()), repr(handle.why())]
    for text in shown:
        assert CANARY not in text
        assert KEY not in text
        assert "77001234" not in text


@pytest.mark.req("DP-4", "DP-16")
def test_restricting_a_kind_hides_earlier_messages_and_definitions(app: App) -> None:
    @app.job(retry=holdfast.Retry(max_attempts=1))
    async def heal(ctx: holdfast.Context, patient: str) -> None:
        await ctx.step("look", lambda: patient)
        with pytest.raises(ValueError, match=CANARY):
            await ctx.step("cut", _fails, patient)
        raise ValueError(f"cannot heal {patient}")

    failed = heal.enqueue(CANARY)
    app.run_worker(burst=True)
    assert CANARY in str(failed.get().error_message), "the kind was not restricted yet"
    app.templates.set("usual", "heal", {"patient": CANARY})
    app.schedules.add("nightly", "0 3 * * *", kind="heal", payload={"patient": CANARY})
    app.payload_rules.set("heal", restricted=True)
    details = session_of(app).run(story(session_of(app).store, failed.id, "default"))
    attempts = session_of(app).run(session_of(app).store.jobs.attempts(failed.id, "default"))
    shown: list[object] = [details, attempts, failed.get(), failed.history(), app.jobs.list(), app.jobs.why(failed.id)]
    shown += [app.templates.get("usual"), app.templates.list(), app.templates.versions("usual")]
    shown += [app.schedules.get("nightly"), app.schedules.list(), app.schedules.pause("nightly")]
    shown += [app.schedules.resume("nightly"), app.schedules.edit("nightly", missed="skip")]
    for each in shown:
        assert CANARY not in repr(each)
    hidden = app.templates.get("usual")
    with pytest.raises(InvalidSetting, match="payload_reserved"):  # set again as shown
        app.templates.set("usual", "heal", hidden.payload)
    made = [app.templates.enqueue("usual").id, app.schedules.run("nightly")]
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        payloads = {str(row[0]): json.dumps(row[1]) for row in by_hand.execute("select id, payload from job")}
    assert all(CANARY in payloads[each] for each in made)


def _fails(patient: str) -> None:
    raise ValueError(f"cannot cut {patient}")


@pytest.mark.req("DP-4")
def test_declared_rules_apply_at_once_and_are_stored_by_a_worker(new_app: NewApp) -> None:
    app = new_app(name="shop")

    @app.job(payload_rules=PayloadPolicy(signal_only=True, forbidden=["Iban"], max_bytes="1KB"))
    def pay(**facts: Any) -> None: ...

    for bad, code in (({"iban": CANARY}, "payload_forbidden"), ({"x": "y" * 1100}, "payload_over_limit")):
        with pytest.raises(Refused, match=code) as refused:
            pay.enqueue(**bad)
        assert CANARY not in str(refused.value)
    assert app.payload_rules.list() == []
    app.run_worker(burst=True)
    (rule,) = app.payload_rules.list()
    assert (rule.tenant, rule.kind, rule.declared_by, rule.forbidden) == (EVERY_TENANT, "pay", "shop", ("iban",))
    # From then on the rule holds for every caller and tenant; another program without it changes nothing.
    other = new_app(name="other")
    other.run_worker(burst=True)
    with pytest.raises(Refused, match="payload_forbidden"):
        other.enqueue("pay", {"a": [{"IBAN": 1}]}, tenant="acme")
    assert "a forbidden key at $.iban:" in str(app.payload_rules.check("pay", {"iban": 1}))
    assert app.payload_rules.check("pay", {"amount": 1}) is None
    # A release of the program without the rule removes it.
    new_app(name="shop").run_worker(burst=True)
    assert app.payload_rules.list() == []


@pytest.mark.req("DP-4")
def test_payload_rules_are_managed_from_python(app: App) -> None:
    rules = app.payload_rules
    rules.set("import", restricted=True)
    rules.set(every_tenant=True, max_bytes=4096, store=False)
    assert rules.effective("import").restricted
    assert rules.effective("import").max_bytes == 4096
    assert not rules.effective("other").restricted
    rule = rules.get(every_tenant=True)
    assert rule is not None
    assert (rule.tenant, rule.kind, rule.store) == ("*", "*", False)
    rules.remove("import")
    with pytest.raises(NotFound, match="payload_rule_not_found"):
        rules.remove("import")
    for bad in ({}, {"forbidden": ["x"]}, {"signal_only": True, "forbidden": ["key"]}, {"max_bytes": 1}):
        with pytest.raises(InvalidSetting):
            rules.set("x", **bad)


@pytest.mark.req("DP-4", "DP-21")
def test_references_are_stored_with_a_job_and_its_result(app: App) -> None:
    seen = {}

    @app.job()
    async def index(ctx: holdfast.Context, page: int) -> int:
        seen[page] = await ctx.references()
        ctx.result_ref = "s3://out/index"
        return page

    handle = index.using(source_ref="s3://in/1", payload_ref="vault:9").enqueue(7)
    index.using(target_ref="s3://out/2").enqueue(8)
    app.run_worker(burst=True)
    assert seen == {7: References("s3://in/1", None, "vault:9"), 8: References(target_ref="s3://out/2")}
    assert handle.result() == 7
    details = session_of(app).run(story(session_of(app).store, handle.id, "default"))
    assert details is not None
    assert details.result is not None
    assert (details.references.source_ref, details.result.ref) == ("s3://in/1", "s3://out/index")
    with pytest.raises(InvalidSetting, match="invalid_name"):
        index.using(source_ref=" ").enqueue(1)


@pytest.mark.req("DP-21", "DP-4")
def test_large_payload_is_stored_as_an_artifact_and_loaded_for_the_handler(new_app: NewApp, tmp_path: Path) -> None:
    app = new_app(artifacts=tmp_path / "artifacts")
    large = "x" * 1_500_000  # more than the inline limit

    @app.job(
        retry=holdfast.Retry(max_attempts=1),
        payload_rules=PayloadPolicy(store=True, max_bytes=1000, max_result_bytes=1000),
    )
    def shout(words: str) -> str:
        return words.upper()

    @app.job()
    def whisper(words: str) -> str:
        return words.lower()

    small, big = shout.enqueue("hi"), shout.using(key="k").enqueue(large)
    again = shout.using(key="k").enqueue(large)
    assert (again.id, again.created, again.reason) == (big.id, False, "duplicate_key")
    assert [each.name for each in (tmp_path / "artifacts" / "default").iterdir()] == [big.id]  # and no other
    with pytest.raises(Conflict, match="idempotency_conflict"):
        shout.using(key="k").enqueue(large + "y")
    with pytest.raises(HoldfastError, match="payload_too_large"):
        whisper.enqueue(large)
    # If only the database has a rule, the refusal comes from there.
    app.payload_rules.set("whisper", max_bytes=500, store=True)
    quiet = whisper.enqueue("Y" * 600)
    app.run_worker(burst=True)
    assert small.result() == "HI"
    assert big.result() == large.upper()
    assert quiet.result() == "y" * 600
    result = session_of(app).run(session_of(app).store.jobs.result(big.id, "default"))
    assert result is not None
    assert (result.value, str(result.ref)[:19]) == (None, "artifact://default/")
    assert len(json.dumps(big.get().payload)) < 300
    # A missing or changed object fails the job with a code, and the job is not lost.
    lost, changed = shout.enqueue("l" * 2000), shout.enqueue("c" * 2000)
    assert app.artifacts is not None
    app.artifacts.delete(lost.get().payload["$holdfast"]["stored"], tenant="default")
    (file,) = (tmp_path / "artifacts" / "default" / changed.id).iterdir()
    file.write_bytes(b"something else")
    app.run_worker(burst=True)
    assert [(each.state(), each.get().error_code) for each in (lost, changed)] == [
        (State.DEAD_LETTER, "artifact_missing"),
        (State.DEAD_LETTER, "artifact_changed"),
    ]
    # Artifacts of an attempt are stored there as well.
    refs = []

    @app.job()
    async def report(ctx: holdfast.Context) -> None:
        refs.append(await ctx.artifact("report.csv", data=b"a,b\n1,2\n"))

    report.enqueue()
    app.run_worker(burst=True)
    assert app.artifacts.get(refs[0], tenant="default") == b"a,b\n1,2\n"
    with pytest.raises(Refused, match="artifact_not_yours"):
        app.artifacts.get(refs[0], tenant="acme")


@pytest.mark.req("DP-4")
def test_encrypted_steps_and_checkpoints_are_decrypted_with_the_key(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"old:{new_key()}")
    app = new_app()

    @app.job()
    def heal(ctx: holdfast.SyncContext, patient: str) -> None:
        ctx.step("look", lambda: {"name": patient})
        ctx.checkpoint.save(patient, "at")

    handle = heal.enqueue(CANARY)
    app.run_worker(burst=True)
    assert [step.value for step in handle.steps()] == [{"name": CANARY}]
    assert handle.checkpoints() == {"at": CANARY}
    monkeypatch.delenv("HOLDFAST_KEYS")
    stranger = new_app().jobs.handle(handle.id)
    assert CANARY not in repr((stranger.steps(), stranger.checkpoints()))


@pytest.mark.req("DP-4")
def test_payloads_and_results_are_encrypted_and_decrypted_with_the_key(
    new_app: NewApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = f"old:{new_key()}", f"new:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app(artifacts=tmp_path)
    retry = holdfast.Retry(max_attempts=2, backoff=fixed(0.01))
    fails = [False, True]  # popped from the end

    @app.job(retry=retry, payload_rules=PayloadPolicy(store=True, max_result_bytes=300, signal_only=True))
    def echo(text: str) -> str:
        return text

    @app.job(payload_rules=PayloadPolicy(signal_only=True))
    def note(**facts: str) -> None: ...

    @app.job(retry=retry, retry_as="new_job")
    def twice(text: str) -> str:
        if fails.pop():
            raise ValueError("once more")
        return text

    handles = [echo.enqueue(CANARY), echo.using(key="k").enqueue(CANARY * 100), twice.enqueue(CANARY)]
    assert echo.using(key="k").enqueue(CANARY * 100).reason == "duplicate_key"
    with pytest.raises(Refused, match="payload_forbidden"):  # rules apply before encryption
        app.enqueue("note", {"facts": {"token": "t"}})
    waiting = echo.enqueue("later" + CANARY)
    by_hand = open_by_hand(session_of(app).store.url)
    stored = by_hand.execute("select payload from job") + by_hand.execute("select value from result")
    assert CANARY not in json.dumps(stored, default=str)
    app.run_worker(burst=True)
    until(lambda: _run_out(app, handles[2].id), "the retry has succeeded")
    assert len(app.jobs.chain(handles[2].id)) == 2
    assert [each.result() for each in handles] == [CANARY, CANARY * 100, CANARY]
    stored = by_hand.execute("select payload from job") + by_hand.execute("select value from result")
    by_hand.close()
    assert CANARY not in json.dumps(stored, default=str)
    assert all(CANARY.encode() not in each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert waiting.result() == "later" + CANARY
    # Without the key the payload cannot be read; the job is not lost.
    unread = echo.enqueue(CANARY)
    monkeypatch.setenv("HOLDFAST_KEYS", new)
    stranger = new_app(artifacts=tmp_path)
    stranger.job("echo", retry=holdfast.Retry(max_attempts=1))(echo.function)
    stranger.run_worker(burst=True)
    assert unread.get().error_code == "key_unknown"
    # A replacement payload is encrypted for the job that redrive creates.
    until(lambda: _is_dead(stranger, unread.id), "the job is dead without the key")
    again = app.dead_letters.redrive_as(unread.id, {"text": "another" + CANARY})
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        assert CANARY not in json.dumps(by_hand.execute("select payload from job"), default=str)
    app.run_worker(burst=True)
    made = app.jobs.get(again)
    assert made.state is State.SUCCEEDED, "the payload was decrypted"


@pytest.mark.req("DP-4", "HF-6", "CX-8")
def test_steps_and_checkpoints_are_encrypted_and_read_back(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"old:{new_key()}")
    app = new_app()
    once = holdfast.Retry(max_attempts=2, backoff=fixed(0.01))
    calls: list[str] = []

    def look_up(who: str) -> dict[str, str]:
        calls.append(who)
        return {"found": who}

    @app.job(retry=once)
    async def heal(ctx: holdfast.Context) -> list[Any]:
        step = await ctx.step("look up", look_up, CANARY)
        seen = [step, await ctx.checkpoint.load("row"), await ctx.checkpoint.load("none", 7)]
        if seen[1] is None:
            await ctx.checkpoint.save({"at": CANARY}, "row")
            raise ValueError("once more")
        return seen

    @app.job(retry=once)
    def heal_here(ctx: holdfast.SyncContext) -> list[Any]:
        step = ctx.step("look up", look_up, CANARY)
        seen = [step, ctx.checkpoint.load("row"), ctx.checkpoint.load("none", 7)]
        if seen[1] is None:
            ctx.checkpoint.save({"at": CANARY}, "row")
            raise ValueError("once more")
        return seen

    @app.job(retry=holdfast.Retry(max_attempts=1))
    async def pose(ctx: holdfast.Context) -> None:
        await ctx.step("pose", lambda: {"$holdfast": {"key": "k", "sealed": "AAAA"}})

    handles = [heal.enqueue(), heal_here.enqueue()]
    posed = pose.enqueue()
    app.run_worker(burst=True)
    assert posed.get().error_code == "payload_reserved"
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        stored = by_hand.execute("select value from step") + by_hand.execute(
            "select value from checkpoint where name <> 'holdfast:running'"
        )
        assert (len(stored), CANARY in json.dumps(stored, default=str)) == (4, False)
    until(lambda: _is_over(app, handles[0].id) and _is_over(app, handles[1].id), "both have been tried again")
    assert [each.result() for each in handles] == [[{"found": CANARY}, {"at": CANARY}, 7]] * 2
    assert calls == [CANARY] * 2, "the step was remembered"
    # Without the key no attempt continues from the stored values, and the job is not lost.
    stuck = heal.enqueue()
    until(lambda: _attempts(app, stuck.id) == 1, "the job has run once")
    monkeypatch.setenv("HOLDFAST_KEYS", f"new:{new_key()}")
    stranger = new_app()
    stranger.job("heal", retry=once)(heal.function)
    until(lambda: _is_dead(stranger, stuck.id), "the job is dead without the key")
    assert (stuck.get().error_code, len(calls)) == ("key_unknown", 3)


def _is_over(app: App, job_id: str) -> bool:
    app.run_worker(burst=True)
    return app.jobs.get(job_id).state is State.SUCCEEDED


def _attempts(app: App, job_id: str) -> int:
    app.run_worker(max_jobs=1, burst=True)
    return app.jobs.get(job_id).attempt


def _is_dead(app: App, job_id: str) -> bool:
    app.run_worker(burst=True)
    return app.jobs.get(job_id).state is State.DEAD_LETTER


def _run_out(app: App, job_id: str) -> bool:
    app.run_worker(burst=True)
    return app.jobs.chain(job_id)[-1].state is State.SUCCEEDED


FORGED = {"$holdfast": {"stored": "artifact://x"}}


@pytest.mark.req("DP-4")
def test_payload_that_looks_encrypted_is_refused(app: App) -> None:
    with pytest.raises(HoldfastError, match="payload_reserved"):
        app.enqueue("any", FORGED)
    with pytest.raises(HoldfastError, match="payload_reserved"):
        app.templates.set("forged", kind="any", payload=FORGED)
    with pytest.raises(HoldfastError, match="payload_reserved"):
        app.subscriptions.set("forged", "order.paid", kind="any", payload=FORGED)
    with pytest.raises(HoldfastError, match="payload_reserved"):
        app.repository().enqueue("any", FORGED)


@pytest.mark.req("DP-4")
def test_result_that_looks_like_a_stored_reference_is_refused(app: App) -> None:
    """The object behind a reference is shown to everyone who may see the job."""

    @app.job()
    def echoes(value: dict[str, Any]) -> dict[str, Any]:
        return value

    job = echoes.enqueue(FORGED)
    app.run_worker(burst=True)
    ended = job.get()
    assert (ended.state, ended.error_code, ended.retries) == (State.DEAD_LETTER, "payload_reserved", 0)


@pytest.mark.req("DP-4")
def test_refused_schedule_does_not_block_other_schedules(app: App) -> None:
    @app.job()
    def tell(**facts: Any) -> None: ...

    app.payload_rules.set("tell", signal_only=True)
    app.schedules.add("bad", "every 1s", kind="tell", payload={"body": 1})
    app.schedules.add("good", "every 1s", kind="tell", payload={"id": 1})
    session_of(app).run(session_of(app).store.clock.set(timedelta(seconds=5), None))
    app.run_worker(burst=True, promote_every=0.05)
    assert {json.dumps(each.payload) for each in app.jobs.list(kind="tell")} == {'{"facts": {"id": 1}}'}
    shown = app.schedules.get("bad")
    assert shown.problem == "payload_forbidden"
