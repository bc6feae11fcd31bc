"""Jobs over HTTP: enqueue, search, read, and operate."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast import App, PayloadPolicy, Retry
from holdfast.app.internals import session_of
from holdfast.engine.retry import fixed
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from holdfast.server.bodies import RetryPolicy
from tests.api.conftest import HERE, client_of

JOBS = "/api/v1/jobs"


async def work(app: App) -> None:
    await asyncio.to_thread(app.run_worker, burst=True)


def declare(app: App) -> None:
    @app.job(retry=holdfast.Retry(max_attempts=1))
    def divide(a: int, b: int) -> float:
        return a / b


@pytest.mark.req("JF-14", "CX-1", "DP-3")
async def test_key_identifies_one_job(app: App) -> None:
    async with client_of(app, role="producer", tenant="acme") as http:
        body = {
            "kind": "mail",
            "payload": {"to": "ada", "n": 7},
            "queue": "post",
            "priority": 5,
            "tags": ["a", "b"],
            "key": "k-1",
            "delay": "1h",
            "limit_key": "ada",
            "correlation_id": "c-1",
            "external_ref": "x-1",
            "source_ref": "file:///in",
            "resources": ["gpu"],
            "retry": {"max_attempts": 3, "backoff": {"base": 5, "jitter": False}},
        }
        made = await http.post(JOBS, json=body)
        assert made.status_code == 201, made.text
        job_id = made.json()["id"]
        assert made.json() == {"id": job_id, "tenant": "acme", "created": True, "reason": None}
        assert made.headers["location"] == f"{JOBS}/{job_id}"
        again = await http.post(JOBS, json=body)
        assert (again.status_code, again.json()["id"], again.json()["created"]) == (200, job_id, False)
        keyed = await http.post(JOBS, json=body | {"key": None}, headers={"idempotency-key": "k-1"})
        assert (keyed.status_code, keyed.json()["id"]) == (200, job_id)
        other = await http.post(JOBS, json=body | {"payload": {"to": "bob"}})
        assert (other.status_code, other.json()["code"], other.json()["refused"]) == (409, "idempotency_conflict", True)
        assert other.headers["content-type"] == "application/problem+json"
        two = await http.post(JOBS, json=body, headers={"idempotency-key": "k-2"})
        assert (two.status_code, two.json()["code"]) == (422, "conflicting_options")

        shown = (await http.get(made.headers["location"])).json()
        job = shown["job"]
        assert (job["queue"], job["priority"], job["tags"], job["max_attempts"]) == ("post", 5, ["a", "b"], 3)
        assert (job["enqueued_by"], job["tenant"], job["payload"]) == ("a producer", "acme", {"to": "ada", "n": 7})
        assert (job["uses"], job["backoff"]["base"]) == (["key:ada", "resource:gpu"], 5.0)
        assert shown["references"]["source_ref"] == "file:///in"
        assert shown["history"][0]["actor"] == "a producer"


@pytest.mark.slow
@pytest.mark.req("JF-14", "DP-3")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_invalid_enqueue_is_rejected_and_stores_nothing(app: App) -> None:
    declare(app)
    cases: list[tuple[bytes | Any, int, str]] = [
        (b"", 422, "invalid_request"),
        (b"{", 422, "invalid_request"),
        (b"[]", 422, "invalid_request"),
        (b'{"kind": "x", "payload": ' + b"[" * 500 + b"]" * 500 + b"}", 422, "payload_too_deep"),
        (b'{"kind": "x", "payload": {"n": NaN}}', 422, "payload_not_finite"),
        (b'{"kind": "x\\ud800"}', 422, "invalid_request"),
        ({"kind": "x", "tenant": "other"}, 422, "invalid_request"),
        ({"kind": "x", "enqueued_by": "root"}, 422, "invalid_request"),
        ({"kind": ""}, 422, "invalid_name"),
        ({"kind": "a\x00b"}, 422, "invalid_name"),
        ({"kind": "x", "queue": "*"}, 422, "invalid_name"),
        ({"kind": "x", "priority": 10**6}, 422, "invalid_request"),
        ({"kind": "x", "delay": -1}, 422, "invalid_duration"),
        ({"kind": "x", "delay": "soon"}, 422, "invalid_duration"),
        ({"kind": "x", "run_at": "2027-01-31T09:00:00"}, 422, "invalid_request"),
        ({"kind": "x", "retry": {"max_attempts": 0}}, 422, "invalid_request"),
        ({"kind": "x", "parent": "nobody"}, 422, "invalid_id"),
        ({"kind": "x", "parent": "01900000-0000-7000-8000-000000000000"}, 404, "parent_not_found"),
        ({"kind": "x", "payload": "a" * 1_100_000}, 413, "payload_too_large"),
        ({"kind": "divide", "payload": {"a": 1, "c": 2}}, 422, "invalid_arguments"),
        (b" " * (9 * 1024 * 1024), 413, "body_too_large"),
    ]
    async with client_of(app, role="producer") as http:
        for body, status, code in cases:
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = await http.post(JOBS, headers={"content-type": "application/json"}, **sent)
            assert (answer.status_code, answer.json()["code"]) == (status, code), (str(body)[:80], answer.text[:300])
        assert (await http.get(JOBS)).json() == {"items": [], "next": None}
        for path in (f"{JOBS}/x", f"{JOBS}?limit=0", f"{JOBS}?limit=201", f"{JOBS}?after=x", f"{JOBS}?q=nope:1"):
            assert (await http.get(path)).status_code == 422, path
        for path in (f"{JOBS}/01900000-0000-7000-8000-000000000000", "/api/v1/nothing", "/api/x"):
            gone = await http.get(path)
            assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json"), path
        nowhere = (await http.get("/api/x")).json()
        assert nowhere["detail"] == "there is no route /api/x"
        assert nowhere["fix"] == "List the routes: /api/v1/openapi.json"
        wrong = await http.put(JOBS)
        assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.req("JF-14", "DP-3")
async def test_each_job_of_a_batch_has_a_result(app: App) -> None:
    async with client_of(app, role="producer") as http:
        first = (await http.post(JOBS, json={"kind": "mail", "key": "k", "payload": {"n": 1}})).json()["id"]
        many = [
            {"kind": "mail", "payload": {"n": 2}},
            {"kind": "mail", "key": "k", "payload": {"n": 1}},
            {"kind": "mail", "key": "k", "payload": {"n": 3}},
            {"kind": "mail", "queue": " "},
        ]
        answer = await http.post(f"{JOBS}/batch", json={"jobs": many})
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        assert [(item["created"], item["reason"]) for item in items] == [
            (True, None),
            (False, "duplicate_key"),
            (False, "idempotency_conflict"),
            (False, "invalid_name"),
        ]
        assert (items[1]["id"], items[3]["id"]) == (first, None)
        assert (await http.post(f"{JOBS}/batch", json={"jobs": []})).status_code == 422
        assert (await http.post(f"{JOBS}/batch", json={"jobs": [{"kind": "x"}] * 1_001})).status_code == 422


@pytest.mark.req("JF-14", "CX-14")
async def test_jobs_are_searched_page_by_page(app: App) -> None:
    declare(app)
    failed = [app.enqueue("divide", {"a": n, "b": 0}, tags=["odd"]).id for n in range(3)]
    good = app.enqueue("divide", {"a": 1, "b": 1}).id
    await work(app)
    waiting = [app.enqueue("other", {"n": n}, queue="slow", agent="ada").id for n in range(5)]
    async with client_of(app, role="viewer") as http:

        async def search(**params: Any) -> list[str]:
            ids: list[str] = []
            after: str | None = None
            while True:
                page = (await http.get(JOBS, params={**params, **({} if after is None else {"after": after})})).json()
                ids += [job["id"] for job in page["items"]]
                after = page["next"]
                if after is None:
                    return ids

        every = [*waiting[::-1], good, *failed[::-1]]
        assert await search(limit=2) == every
        assert await search(q="state:dead_letter kind:divide tag:odd since:1h", limit=2) == failed[::-1]
        assert await search(q='"division by" zero', limit=1) == failed[::-1]
        assert await search(q="zero", state="succeeded") == []
        assert await search(agent="ada", queue="slow", until="1h") == []
        assert await search(kind="other") == waiting[::-1]
        assert (await http.get(JOBS)).json()["items"][0]["payload"] is None
        twice = await http.get(JOBS, params={"q": "kind:a", "kind": "b"})
        assert (twice.status_code, twice.json()["code"]) == (422, "invalid_search")
        counts = (await http.get(f"{JOBS}/counts")).json()
        assert {k: v for k, v in counts["counts"].items() if v} == {"queued": 5, "dead_letter": 3, "succeeded": 1}
        some = (await http.get(f"{JOBS}/counts", params={"kind": "divide"})).json()
        assert {k: v for k, v in some["counts"].items() if v} == {"dead_letter": 3, "succeeded": 1}
    async with client_of(app, role="viewer", tenant="acme") as stranger:
        assert (await stranger.get(JOBS)).json()["items"] == []
        assert (await stranger.get(f"{JOBS}/{good}")).status_code == 404
        assert (await stranger.get(f"{JOBS}/{good}/history")).status_code == 404


@pytest.mark.req("JF-14", "DP-3")
async def test_result_is_waited_for(app: App, http: httpx2.AsyncClient) -> None:
    declare(app)
    good, bad = app.enqueue("divide", {"a": 6, "b": 3}).id, app.enqueue("divide", {"a": 1, "b": 0}).id
    early = await http.get(f"{JOBS}/{good}/result", params={"wait": 0.05})
    assert (early.status_code, early.json()["finished"], early.json()["state"]) == (202, False, "queued")
    assert (await http.get(f"{JOBS}/{good}/result", params={"wait": 61})).status_code == 422
    waiting = asyncio.create_task(http.get(f"{JOBS}/{good}/result", params={"wait": 60}, timeout=70))
    await work(app)
    ended = await waiting
    assert (ended.status_code, ended.json()["value"], ended.json()["finished"]) == (200, 2.0, True)
    dead = (await http.get(f"{JOBS}/{bad}/result", params={"wait": 5})).json()
    assert (dead["state"], dead["finished"], dead["error_code"]) == ("dead_letter", True, "ZeroDivisionError")
    why = (await http.get(f"{JOBS}/{bad}/why")).json()
    assert why["job"]["id"] == bad
    assert why["reasons"]
    attempts = (await http.get(f"{JOBS}/{bad}/attempts")).json()["items"]
    assert "ZeroDivisionError" in attempts[0]["traceback"]
    history = (await http.get(f"{JOBS}/{bad}/history", params={"limit": 2})).json()
    rest = (await http.get(f"{JOBS}/{bad}/history", params={"after": history["next"]})).json()
    assert [event["type"] for event in [*history["items"], *rest["items"]]][:2] == ["enqueue", "take"]
    assert rest["next"] is None
    assert [job["id"] for job in (await http.get(f"{JOBS}/{bad}/chain")).json()["items"]] == [bad]


@pytest.mark.req("JF-14", "SC-20")
async def test_attempts_in_pages(app: App, http: httpx2.AsyncClient) -> None:
    @app.job(retry=holdfast.Retry(max_attempts=3, backoff=fixed(0)))
    def broken(text: str) -> None:
        raise ValueError("no")

    job = app.enqueue("broken", {"text": "x" * 400_000}).id
    for _ in range(3):
        await work(app)
    path, after = f"{JOBS}/{job}/attempts", None
    seen: list[tuple[int, int]] = []
    while after is not None or not seen:
        page = (await http.get(path, params={"limit": 1} | ({} if after is None else {"after": after}))).json()
        seen += [(each["attempt"], len(each["payload"]["text"])) for each in page["items"]]
        after = page["next"]
    assert seen == [(1, 400_000), (2, 400_000), (3, 400_000)]
    every = (await http.get(path)).json()["items"]
    assert ["text" in each["payload"] for each in every] == [False, True, True], "1 MB, the newest first"
    assert (await http.get(f"{JOBS}/{uuid.uuid4()}/attempts")).status_code == 404


@pytest.mark.req("JF-14")
async def test_stopping_service_ends_waiting_requests(app: App) -> None:
    session_of(app).make_ready()
    service = make_service(app, authenticate=at_this_machine(app))
    left = app.enqueue("later", {}, delay="1h").id
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        waiting = asyncio.create_task(http.get(f"{JOBS}/{left}/result", params={"wait": 60}, timeout=70))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        service.state.stopping.set()
        answer = await asyncio.wait_for(waiting, 30)
    assert (answer.status_code, answer.json()["finished"]) == (202, False)


@pytest.mark.req("JF-14", "SC-3", "DP-15", "DP-3")
async def test_operator_moves_reschedules_cancels_discards_and_redrives_jobs(app: App) -> None:
    declare(app)
    bad, worse, third = (app.enqueue("divide", {"a": 1, "b": 0}).id for _ in range(3))
    await work(app)
    first, second = (app.enqueue("later", {}, delay="1h").id for _ in range(2))
    async with client_of(app, role="operator") as http:

        async def do(job: str, operation: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
            answer = await http.post(f"{JOBS}/{job}/{operation}", json=body)
            return answer.status_code, answer.json()

        assert (await do(second, "move", {"first": True, "reason": "urgent"}))[0] == 200
        assert (await do(second, "move", {}))[1]["code"] == "no_place"
        assert (await do(first, "reschedule", {"delay": "2h"}))[1]["state"] == "queued"
        assert (await do(first, "reschedule"))[1]["refused"] is False
        assert (await do(first, "cancel", {"reason": "not needed"}))[1]["state"] == "cancelled"
        status, again = await do(first, "cancel")
        assert (status, again["code"]) == (409, "already_finished")
        assert (await do("01900000-0000-7000-8000-000000000000", "cancel"))[0] == 404
        assert (await do(bad, "discard", {"reason": " "}))[1]["code"] == "reason_required"
        assert (await do(bad, "discard", {"reason": "wrong"}))[0] == 200
        assert (await do(worse, "redrive", {"max_attempts": 2, "from_step": "nothing"}))[0] == 404
        assert (await do(worse, "redrive", {"max_attempts": 2}))[1]["state"] == "queued"
        status, remade = await do(third, "redrive-as", {"payload": {"a": 4, "b": 2}, "reason": "typo"})
        assert status == 200, remade
        await work(app)
        assert (await http.get(f"{JOBS}/{remade['redriven_as']}/result")).json()["value"] == 2.0
        event = (await http.get(f"{JOBS}/{first}/history")).json()["items"][-1]
        assert (event["actor"], event["meta"]["reason"]) == ("a operator", "not needed")


@pytest.mark.req("JF-14", "DP-4", "DP-21")
async def test_restricted_data_is_hidden_and_artifacts_are_downloads(new_app: Any, tmp_path: Any) -> None:
    app = new_app(artifacts=tmp_path)

    @app.job(payload_rules=PayloadPolicy(restricted=True))
    def secret(ctx: holdfast.SyncContext, number: str) -> str:
        ctx.artifact("card.html", data=b"<script>alert(1)</script>" + number.encode())
        return number

    @app.job()
    def plain(ctx: holdfast.SyncContext) -> None:
        ctx.artifact('a"b.html', data=b"<script>alert(1)</script>")

    hidden, open_ = app.enqueue("secret", {"number": "4242-canary"}).id, app.enqueue("plain", {}).id
    await work(app)
    async with client_of(app, role="admin") as http:
        for path in ("", "/result", "/history", "/attempts", "/why", "/artifacts"):
            answer = await http.get(f"{JOBS}/{hidden}{path}")
            assert answer.status_code == 200, (path, answer.text)
            assert "4242-canary" not in answer.text, path
        assert "4242-canary" not in (await http.get(JOBS)).text
        refused = await http.get(f"{JOBS}/{hidden}/artifacts/card.html")
        assert (refused.status_code, refused.json()["code"]) == (403, "restricted")
        name = (await http.get(f"{JOBS}/{open_}/artifacts")).json()["items"][0]["name"]
        file = await http.get(f"{JOBS}/{open_}/artifacts/{name}")
        assert file.content == b"<script>alert(1)</script>"
        assert file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"].startswith('attachment; filename="a_b.html"')
        assert file.headers["x-content-type-options"] == "nosniff"
        assert (await http.get(f"{JOBS}/{open_}/artifacts/none")).json()["code"] == "artifact_not_found"


@pytest.mark.req("CX-9")
def test_retry_policy_over_http_has_the_defaults_of_python() -> None:
    assert RetryPolicy().policy() == Retry()
