"""HTTP workers: leases, claims, checkpoints and settlements, by the same rules as for Python workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.job import Attempt
from holdfast.engine.states import State
from holdfast.stores.vault import new_key
from tests.api.conftest import client_of
from tests.app.conftest import NewApp
from tests.support.stores import forward

pytestmark = pytest.mark.req("JF-14")

LEASES = "/api/v1/leases"


@pytest_asyncio.fixture
async def work(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app, role="executor") as client:
        yield client
    await session_of(app).store.leave_loop()


async def attempts_of(app: App, job_id: str) -> list[Attempt]:
    return await session_of(app).arun(session_of(app).store.jobs.attempts(job_id, "default"))


async def lease_of(work: httpx2.AsyncClient, **options: object) -> str:
    answer = await work.post(LEASES, json=options)
    assert answer.status_code == 201, answer.text
    return f"{LEASES}/{answer.json()['lease']}"


async def claim(work: httpx2.AsyncClient, lease: str, **options: object) -> list[dict[str, object]]:
    answer = await work.post(f"{lease}/claim", json=options)
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, object]] = answer.json()["jobs"]
    return jobs


async def settle(work: httpx2.AsyncClient, lease: str, job: dict[str, object], **fields: object) -> httpx2.Response:
    return await work.post(f"{lease}/settle", json={"job": job["id"], "attempt": job["attempt"], **fields})


@pytest.mark.req("DP-23")
async def test_lease_claims_jobs_for_its_label_and_jobs_without_one(app: App, work: httpx2.AsyncClient) -> None:
    async with client_of(app, role="producer") as producer:
        made = await producer.post("/api/v1/jobs", json={"kind": "train", "executor": "gpu-1"})
        assert made.status_code == 201, made.text
        listed = (await producer.get("/api/v1/jobs", params={"executor": "gpu-1"})).json()["items"]
        assert [(row["id"], row["executor"]) for row in listed] == [(made.json()["id"], "gpu-1")]
        assert (await producer.get("/api/v1/jobs", params={"q": "executor:gpu-2"})).json()["items"] == []
        bad = await producer.post("/api/v1/jobs", json={"kind": "train", "executor": "*"})
        assert (bad.status_code, bad.json()["code"]) == (422, "invalid_name")
    assert await claim(work, await lease_of(work)) == []
    (taken,) = await claim(work, await lease_of(work, name="gpu-1"))
    assert taken["id"] == made.json()["id"]


async def test_job_is_claimed_checkpointed_retried_and_settled(app: App, work: httpx2.AsyncClient) -> None:
    handle = await app.aenqueue("mail", {"to": "ada"}, tags=["a"])
    lease = await lease_of(work, name="node", kinds=["mail"], queues=["default"], slots=4)
    (job,) = await claim(work, lease, want=5)
    assert (job["id"], job["attempt"], job["payload"], job["tags"]) == (handle.id, 1, {"to": "ada"}, ["a"])
    fence = {"job": handle.id, "attempt": 1}
    assert (await work.post(f"{lease}/checkpoint", json={**fence, "name": "row", "value": [7]})).status_code == 200
    assert (await work.post(f"{lease}/checkpoint", json={**fence, "progress": 0.5, "message": "half"})).is_success
    renewed = (await work.post(f"{lease}/renew", json={"ttl": 60})).json()
    assert renewed["jobs"] == [{"id": handle.id, "attempt": 1}]
    again = await settle(work, lease, job, outcome="retry", after=0, error={"message": "later, password=hunter2"})
    assert (again.status_code, again.json()["ending"]) == (200, "retry")
    assert (await settle(work, lease, job, outcome="retry", after=0)).status_code == 200, (
        "repeating it gets the same response"
    )
    (second,) = await claim(work, lease, wait=10)
    assert (second["attempt"], second["retries"], second["checkpoints"]) == (2, 1, {"row": [7]})
    done = await settle(work, lease, second, outcome="succeeded", result={"sent": 1}, cost=2.5)
    assert done.json() == {"job": handle.id, "attempt": 2, "settled": True, "ending": "succeeded", "reason": None}
    assert (await handle.aresult(timeout=5)) == {"sent": 1}
    operations = [(event.type, event.actor) for event in await handle.ahistory() if event.from_state == "in_progress"]
    assert operations == [("fail", "a executor"), ("succeed", "a executor")]
    assert "hunter2" not in repr(await attempts_of(app, handle.id))
    assert (await work.delete(lease)).status_code == 204
    gone = await work.post(f"{lease}/renew")
    assert (gone.status_code, gone.json()["code"]) == (409, "stale_lease")
    assert (await work.delete(lease)).json()["code"] == "lease_not_found"


@pytest.mark.slow
@pytest.mark.req("DP-4")
async def test_service_seals_checkpoints(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"k1:{new_key()}")
    app = new_app()
    async with client_of(app, role="executor") as work:
        handle = await app.aenqueue("mail", {"to": "ada"})
        lease = await lease_of(work)
        (job,) = await claim(work, lease)
        fence = {"job": handle.id, "attempt": 1}
        assert (await work.post(f"{lease}/checkpoint", json={**fence, "name": "row", "value": ["ada"]})).is_success
        stored = await session_of(app).arun(session_of(app).store.jobs.checkpoints(handle.id, "default"))
        assert (stored["row"]["$holdfast"]["key"], "ada" in str(stored)) == ("k1", False)
        posed = await work.post(f"{lease}/checkpoint", json={**fence, "name": "row", "value": stored["row"]})
        assert (posed.status_code, posed.json()["code"]) == (422, "payload_reserved")
        await settle(work, lease, job, outcome="retry", after=0)
        (second,) = await claim(work, lease, wait=10)
        assert second["checkpoints"] == {"row": ["ada"]}
    await session_of(app).store.leave_loop()


@pytest.mark.slow
async def test_each_outcome_has_its_ending(app: App, work: httpx2.AsyncClient) -> None:
    lease = await lease_of(work)
    outcomes = ["failed", "reject", "snooze", "cancel", "succeeded"]
    handles = [await app.aenqueue("mail", {"n": n}) for n, _ in enumerate(outcomes)]
    jobs = await claim(work, lease, want=100)
    settlements = [
        {
            "job": job["id"],
            "attempt": job["attempt"],
            "outcome": outcome,
            "after": 60,
            "error": {"code": "why", "message": "m"},
        }
        for job, outcome in zip(jobs, outcomes, strict=True)
    ]
    stranger = {"job": "0198c5b4-0000-7000-8000-000000000001", "attempt": 1, "outcome": "succeeded"}
    answer = await work.post(f"{lease}/settle", json={"settlements": [*settlements, settlements[0], stranger]})
    verdicts = answer.json()["settlements"]
    assert [verdict["ending"] for verdict in verdicts] == [
        "retry",
        "dead_letter",
        "snooze",
        "cancel",
        "succeeded",
        None,
        None,
    ]
    assert [verdict["reason"] for verdict in verdicts[-2:]] == ["said_twice", "not_found"]
    states = [(await app.jobs.aget(handle.id)).state for handle in handles]
    assert states == [
        *(State.RETRY_WAITING, State.DEAD_LETTER, State.RETRY_WAITING, State.CANCELLED, State.SUCCEEDED),
    ]


@pytest.mark.slow
async def test_expired_lease_cannot_write(app: App, work: httpx2.AsyncClient) -> None:
    handle = await app.aenqueue("mail", {})
    lease, other = await lease_of(work, ttl=5), await lease_of(work, ttl=3600)
    (job,) = await claim(work, lease)
    await asyncio.to_thread(forward, session_of(app).store, 60)
    (taken,) = await claim(work, other, wait=10)
    assert (taken["id"], taken["attempt"], taken["crashes"]) == (job["id"], 2, 1)
    late = await settle(work, lease, job, outcome="succeeded", result="late")
    assert (late.status_code, late.json()["code"]) == (409, "stale_lease")
    forged = await settle(work, lease, taken, outcome="succeeded", result="forged")
    assert (forged.status_code, forged.json()["code"]) == (409, "stale_lease"), "the attempt belongs to another lease"
    note = {"job": job["id"], "attempt": 1, "name": "n", "value": 1}
    assert (await work.post(f"{lease}/checkpoint", json=note)).json()["code"] == "stale_lease"
    back = await work.post(f"{other}/release", json={"jobs": [{"id": taken["id"], "attempt": 2}]})
    assert back.json()["settlements"][0]["settled"]
    (third,) = await claim(work, other, wait=10)
    assert (third["attempt"], third["retries"]) == (3, 0)
    assert (await settle(work, other, third, outcome="succeeded")).status_code == 200
    assert (await app.jobs.aget(handle.id)).state is State.SUCCEEDED


@pytest.mark.req("CX-8", "DP-12")
async def test_large_checkpoint_goes_to_artifact_store(new_app: NewApp, tmp_path: Path) -> None:
    app, large = new_app(artifacts=tmp_path / "artifacts"), "x" * 1_100_000
    handle = await app.aenqueue("crawl")
    async with client_of(app, role="executor") as work:
        lease = await lease_of(work)
        (job,) = await claim(work, lease)
        fence = {"job": handle.id, "attempt": 1}
        assert (await work.post(f"{lease}/checkpoint", json={**fence, "name": "pages", "value": large})).is_success
        for n in range(2):
            assert (await work.post(f"{lease}/checkpoint", json={**fence, "progress": n / 2})).is_success
        assert await handle.acheckpoints() == {"pages": large}
        assert (await handle.aliveness()).reports == 2
        reserved = await work.post(f"{lease}/checkpoint", json={**fence, "name": "holdfast:running", "value": 1})
        assert reserved.json()["code"] == "reserved_name"
        stale = await work.post(f"{lease}/checkpoint", json={**fence, "attempt": 7, "name": "pages", "value": large})
        assert stale.json()["code"] == "stale_lease"
        assert len([path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]) == 1
        await settle(work, lease, job, outcome="retry", after=0)
        (second,) = await claim(work, lease, wait=10)
        assert second["checkpoints"] == {"pages": large}
    await session_of(app).store.leave_loop()
