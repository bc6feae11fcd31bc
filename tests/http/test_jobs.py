"""Jobs through the client, over a real connection to a real service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import App, Context, Retry, errors
from holdfast.engine.job import Job
from holdfast.engine.states import State
from tests.app.conftest import NewApp
from tests.http.conftest import Driver

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

# Each store in one form, and both forms on one store.
both = pytest.mark.parametrize(
    ("url", "form"), [("sqlite", "blocking"), ("sqlite", "awaiting"), ("postgres", "awaiting")], indirect=["url"]
)
one = pytest.mark.parametrize(("url", "form"), [("sqlite", "awaiting")], indirect=["url"])


@pytest.fixture
def worker(new_app: NewApp) -> App:
    """An app of another process that has the handlers."""
    app = new_app()

    @app.job()
    def double(n: int) -> int:
        return 2 * n

    @app.job(retry=Retry(max_attempts=1))
    def broken(why: str) -> None:
        raise ValueError(why)

    return app


def _enqueue(client: Any, payload: Any, options: dict[str, Any]) -> Any:
    return client.enqueue("double", payload, **options)


@both
def test_job_is_enqueued_waited_for_and_read(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    later = datetime.now(UTC) + timedelta(hours=1)
    handle = client.do(lambda c: c.enqueue("double", {"n": 21}, tags=["a", "b"], retry=Retry(max_attempts=3)))
    assert handle.created
    assert handle.tenant == "default"
    waiting = client.do(lambda c: c.enqueue("double", {"n": 1}, run_at=later, key="once"))
    again = client.do(lambda c: c.enqueue("double", {"n": 1}, run_at=later, key="once"))
    assert (again.id, again.created, again.reason) == (waiting.id, False, "duplicate_key")
    with pytest.raises(errors.WaitTimeout):
        client.do(lambda c: c.jobs.handle(waiting.id).wait(timeout=0.2))

    done: list[object] = []
    waiter = threading.Thread(target=lambda: done.append(worker_side.do(lambda c: c.jobs.handle(handle.id).result(30))))
    worker_side = drive(base)
    waiter.start()
    worker.run_worker(burst=True)
    waiter.join(30)
    assert done == [42]

    job = client.do(lambda c: c.jobs.get(handle.id))
    assert job == worker.jobs.get(handle.id)  # every field, as read from the database
    assert {each.name for each in fields(Job)} == {each.name for each in fields(job)}
    assert client.do(lambda c: c.jobs.handle(handle.id).state()) is State.SUCCEEDED
    assert [e.type for e in client.do(lambda c: c.jobs.history(handle.id))] == ["enqueue", "take", "succeed"]
    assert [a.outcome for a in client.do(lambda c: c.jobs.attempts(handle.id))] == ["succeeded"]
    assert client.do(lambda c: c.jobs.why(waiting.id)).reasons == worker.jobs.why(waiting.id).reasons
    assert client.do(lambda c: c.jobs.details(handle.id)).result.value == 42
    with pytest.raises(errors.NotFound):
        client.do(lambda c: c.jobs.get("0198c5b4-0000-7000-8000-000000000001"))


@pytest.mark.slow
@both
def test_jobs_are_enqueued_in_bulk_paged_and_operated_on(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    calls = [client.client.prepare("double", {"n": n}, queue="many") for n in range(250)]
    calls[7] = client.client.prepare("double", {"m": 7}, queue="many")  # accepted: no signature here
    made = client.do(lambda c: c.enqueue_many(calls))
    assert [each.created for each in made] == [True] * 250
    assert client.do(lambda c: c.enqueue_many([])) == []
    again = client.do(lambda c: c.enqueue_many(calls))  # the same calls, as after a lost response
    assert [each.id for each in again] == [each.id for each in made]
    listed = client.take(lambda c: c.jobs.every(queue="many"))
    assert [each.id for each in listed] == [each.id for each in reversed(made)]
    assert len(client.do(lambda c: c.jobs.list(queue="many", limit=230))) == 230
    assert client.take(lambda c: c.jobs.every(queue="many"), most=3) == listed[:3]

    first, second, third = (each.id for each in made[:3])
    verdicts = client.do(lambda c: c.jobs.cancel(first, second, reason="not wanted"))
    assert [(v.id, v.state, v.refused) for v in verdicts] == [(first, "cancelled", False), (second, "cancelled", False)]
    unknown = "0198c5b4-0000-7000-8000-000000000001"
    refused = client.do(lambda c: c.jobs.cancel(first, unknown))
    assert [(v.refused, v.reason) for v in refused] == [
        (v.refused, v.reason) for v in worker.jobs.cancel(first, unknown)
    ]
    with pytest.raises(errors.Conflict) as raised:
        client.do(lambda c: c.jobs.handle(first).cancel())
    assert raised.value.code == refused[0].reason
    assert client.do(lambda c: c.jobs.move(third, first=True)).refused is False
    assert client.do(lambda c: c.jobs.reschedule(third, delay="1h"))[0].state == "queued"
    assert client.do(lambda c: c.jobs.reschedule(third))[0].refused is False
    assert worker.jobs.why(first).job.state == "cancelled"
    history = client.do(lambda c: c.jobs.history(first))
    assert (history[-1].actor, history[-1].meta["reason"]) == ("a tester", "not wanted")


@pytest.mark.slow
@one
def test_failed_jobs_and_rejected_requests_raise_local_errors(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    handle = client.do(lambda c: c.enqueue("broken", {"why": "no paper"}, retry=Retry(max_attempts=1)))
    worker.run_worker(burst=True)
    with pytest.raises(errors.JobFailed, match="no paper"):
        client.do(lambda c: c.jobs.handle(handle.id).result(timeout=10))
    assert client.do(lambda c: c.jobs.redrive(handle.id, max_attempts=1))[0].state == "queued"
    worker.run_worker(burst=True)
    with pytest.raises(errors.InvalidInput) as raised:
        client.do(lambda c: c.jobs.discard(handle.id, reason=" "))
    assert raised.value.code == "reason_required"
    assert client.do(lambda c: c.jobs.discard(handle.id, reason="given up"))[0].state == "cancelled"
    # Errors that the client can detect are raised before a request, with the local code.
    for options, payload, code in (
        ({}, {"x": float("nan")}, "payload_not_finite"),
        ({}, {"x": "y" * 1_100_000}, "payload_too_large"),
        ({"run_at": datetime(2027, 1, 1)}, {}, "invalid_time"),
        ({"delay": "soon"}, {}, "invalid_duration"),
        ({"color": "red"}, {}, "unknown_option"),
    ):
        with pytest.raises(errors.InvalidInput) as wrong:
            client.do(partial(_enqueue, payload=payload, options=options))
        assert wrong.value.code == code
    for act, kind, code in (
        (lambda c: c.jobs.why("nothing"), errors.InvalidInput, "invalid_id"),
        (lambda c: c.enqueue("double", {}, priority=10**9), errors.InvalidInput, "invalid_request"),
        (lambda c: c.jobs.details("0198c5b4-0000-7000-8000-000000000001"), errors.NotFound, "not_found"),
    ):
        with pytest.raises(kind) as result:
            client.do(act)
        assert result.value.code == code
    with pytest.raises(errors.Refused) as stranger:
        drive(base, token="hf_another").do(lambda c: c.jobs.list())
    assert stranger.value.code == "unauthenticated"


@pytest.mark.req("DP-26", "DP-12")
@one
def test_payload_is_replaced_and_liveness_is_read(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    waiting = client.do(lambda c: c.enqueue("double", {"n": 1}, delay=3600))
    with pytest.raises(errors.Conflict, match="not_replaceable"):
        client.do(lambda c: c.jobs.replace_payload(waiting.id, {"n": 2}, reason="typo"))
    worker.payload_rules.set("double", replaceable=True)
    verdict = client.do(lambda c: c.jobs.replace_payload(waiting.id, {"n": 2}, reason="typo"))
    assert (verdict.refused, worker.jobs.get(waiting.id).payload) == (False, {"n": 2})
    with pytest.raises(errors.InvalidInput, match="reason_required"):
        client.do(lambda c: c.jobs.replace_payload(waiting.id, {"n": 2}, reason=" "))
    assert client.do(lambda c: c.jobs.details(waiting.id)).liveness == worker.jobs.liveness(waiting.id)


@both
@pytest.mark.req("CX-22", "CX-23", "SC-23")
def test_jobs_are_filtered_by_tags_references_and_keys(base: str, drive: Drive, worker: App) -> None:
    client = drive(base)
    tagged = client.do(lambda c: c.enqueue("double", {"n": 1}, tags=["a", "customer:7"], key="k-1", limit_key="acme"))
    other = client.do(lambda c: c.enqueue("double", {"n": 2}, tags=["a"]))
    assert not client.do(lambda c: c.jobs.set_external_ref(tagged.id, "crm-1")).refused

    def listed(**wanted: Any) -> list[str]:
        return [job.id for job in client.do(lambda c: c.jobs.list(**wanted))]

    for wanted in (
        *({"tag": ["a", "customer:7"]}, {"any_tag": ("customer:*", "none")}, {"tag": "customer:*"}),
        *({"external_ref": "crm-1"}, {"key": "k-1"}, {"limit_key": "acme"}),
    ):
        assert listed(**wanted) == [tagged.id], wanted
    assert listed(tag="a") == [other.id, tagged.id]
    assert listed(worker="nobody") == listed(template="t", template_version=1) == listed(domain="billing") == []
    assert client.do(lambda c: c.jobs.get(tagged.id)).external_ref == "crm-1"
    with pytest.raises(errors.NotFound):
        client.do(lambda c: c.jobs.set_external_ref("01a1de74-eb8c-70f1-843b-cac5f6817387", None))
    assert client.do(lambda c: c.health.get(domain="billing")).backlog == 0


def _read(job_id: str, read: str, client: Any) -> Any:
    return getattr(client.jobs, read)(job_id)


def _read_of_handle(job_id: str, read: str, client: Any) -> Any:
    return getattr(client.jobs.handle(job_id), read)()


@both
def test_client_reads_what_the_app_reads(base: str, drive: Drive, worker: App) -> None:
    """Every read of ``app.jobs`` that the service offers, by id and by handle."""
    client = drive(base)

    @worker.job()
    async def pay(ctx: Context, order: int) -> int:
        await ctx.progress(0.5, "half")
        await ctx.checkpoint.save(3, "page")
        return await ctx.step("charge", lambda: order * 2)

    handle = client.do(lambda c: c.enqueue("pay", {"order": 4}, source_ref="s3://in/4"))
    worker.run_worker(burst=True)
    for read in ("get", "details", "steps", "checkpoints", "references", "liveness", "progress", "result", "chain"):
        remote = client.do(partial(_read, handle.id, read))
        local = getattr(worker.jobs, read)(handle.id)
        if read == "details":  # as in other lists
            local = replace(local, chain=[replace(job, payload=None) for job in local.chain])
        assert remote == local, read
    of_one = worker.jobs.handle(handle.id)
    for read in ("steps", "checkpoints", "references", "liveness", "progress", "attempts", "artifacts", "why"):
        assert client.do(partial(_read_of_handle, handle.id, read)) == getattr(of_one, read)()
    assert client.do(lambda c: c.jobs.count(kind="pay")).counts == worker.jobs.count(kind="pay").counts
    found = client.do(lambda c: c.jobs.search("kind:pay"))
    assert ([job.id for job in found.jobs], found.next) == ([handle.id], None)
    with pytest.raises(errors.Refused) as refused:
        client.do(lambda c: c.jobs.payload_indexes())
    assert refused.value.code == "local_only"
