"""Every feature over HTTP: created, read, changed and removed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.limits.model import ReservationRequest
from holdfast.stores.artifacts import open_artifacts
from tests.api.conftest import client_of
from tests.support.stores import forward, put_one, settle, take

API = "/api/v1"
OTHER_TENANTS = "01900000-0000-7000-8000-000000000009"


class Api:
    """Each call checks the status of the response and returns its body."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self.tenant = "default"

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200, **params: Any) -> Any:
        headers = {"holdfast-tenant": self.tenant}
        answer = await self._http.request(method, API + path, json=body, params=params, headers=headers)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text[:500])
        self.headers = answer.headers
        return answer.json() if answer.content else None


@pytest.fixture
def api(http: httpx2.AsyncClient) -> Api:
    return Api(http)


@pytest.mark.req("JF-14", "SC-8", "SC-9")
async def test_schedules_and_templates(api: Api) -> None:
    put = await api("PUT", "/templates/monthly/report", {"kind": "report", "payload": {"a": 1}, "queue": "slow"})
    assert (put["name"], put["version"], put["options"]) == ("monthly/report", 1, {"queue": "slow"})
    await api("PUT", "/templates/monthly/report", {"kind": "report", "payload": {"a": 2}})
    assert [each["version"] for each in (await api("GET", "/templates/monthly/report/versions"))["items"]] == [2, 1]
    first = await api("GET", "/templates/monthly/report/versions", limit=1)
    rest = await api("GET", "/templates/monthly/report/versions", after=first["next"])
    assert [each["version"] for each in first["items"] + rest["items"]] == [2, 1]
    assert (rest["next"], (await api("GET", "/templates/monthly/report", version=1))["payload"]) == (None, {"a": 1})
    made = await api("POST", "/templates/monthly/report/enqueue", {"arguments": {"b": 3}, "priority": 4}, 201)
    job = (await api("GET", f"/jobs/{made['id']}"))["job"]
    assert (job["payload"], job["priority"]) == ({"a": 2, "b": 3}, 4)

    new = {"name": "nightly", "timing": "0 3 * * *", "tz": "Europe/Paris", "template": "monthly/report", "jitter": "1m"}
    assert (await api("POST", "/schedules", new, 201))["state"] == "active"
    assert (await api("POST", "/schedules", new, 409))["code"] == "schedule_exists"
    assert (await api("POST", "/schedules", new | {"name": "x", "timing": "nonsense"}, 422))["refused"]
    edited = await api("PATCH", "/schedules/nightly", {"timing": "0 4 * * *", "priority": 9})
    assert (edited["timing"], edited["options"]) == ("0 4 * * *", {"priority": 9})
    assert (await api("PATCH", "/schedules/nightly", {"priority": None}))["options"] == {}
    times = (await api("GET", "/schedules/nightly/preview", count=3))["items"]
    assert [each["local"][11:16] for each in times] == ["04:00"] * 3
    assert (await api("POST", "/schedules/nightly/pause"))["state"] == "paused"
    assert [each["name"] for each in (await api("GET", "/schedules", state="paused"))["items"]] == ["nightly"]
    assert (await api("POST", "/schedules/nightly/resume"))["state"] == "active"
    ran = (await api("POST", "/schedules/nightly/run", status=201))["job_id"]
    assert (await api("GET", f"/jobs/{ran}"))["made_from"]["schedule"] == "nightly"
    assert (await api("GET", "/schedules/nightly/history"))["items"][0]["job_id"] == ran
    await api("DELETE", "/schedules/nightly", status=204)
    assert (await api("GET", "/schedules/nightly", status=404))["code"] == "schedule_not_found"
    await api("DELETE", "/templates/monthly/report", status=204)
    assert (await api("GET", "/templates"))["items"] == []


@pytest.mark.req("JF-14", "DP-14", "DP-15")
async def test_workflows_operations_and_dead_letters(app: App, api: Api) -> None:
    @app.job(retry=holdfast.Retry(max_attempts=1))
    def fail(n: int) -> None:
        raise ValueError(f"number {n} is bad")

    @app.job()
    def good() -> str:
        return "fine"

    drawn: dict[str, Any] = {
        "kind": "publish",
        "key": "issue-7",
        "nodes": [{"name": "a", "kind": "good"}, {"name": "b", "kind": "good", "queue": "other"}],
        "edges": [{"parent": "a", "child": "b"}],
    }
    started = await api("POST", "/workflows", drawn, 201)
    assert api.headers["location"] == f"{API}/workflows/{started['id']}"
    assert (await api("POST", "/workflows", drawn))["created"] is False
    other = drawn | {"edges": []}
    assert (await api("POST", "/workflows", other, 409))["code"] == "idempotency_conflict"
    circle = {**drawn, "key": None, "edges": [*drawn["edges"], {"parent": "b", "child": "a"}]}
    assert (await api("POST", "/workflows", circle, 422))["code"] == "workflow_cycle"
    more = {"nodes": [{"name": "c", "kind": "good"}], "edges": [{"parent": "b", "child": "c"}]}
    await api("POST", f"/workflows/{started['id']}/jobs", more, 201)
    graph = await api("GET", f"/workflows/{started['id']}/graph")
    assert (graph["workflow"]["status"], len(graph["nodes"]), len(graph["edges"])) == ("active", 3, 2)
    assert [each["id"] for each in (await api("GET", "/workflows", over=False))["items"]] == [started["id"]]
    assert (await api("POST", f"/workflows/{started['id']}/cancel", {"reason": "no"}))["jobs"] == 3
    assert (await api("POST", f"/workflows/{started['id']}/resume", status=409))["code"] == "nothing_to_resume"

    for n in range(3):
        app.enqueue("fail", {"n": n})
    await asyncio.to_thread(app.run_worker, burst=True)
    group = (await api("GET", "/dead-letters", order="count", since="1h"))["items"][0]
    assert (group["open"], group["kind"]) == (3, "fail")
    where = f"/dead-letters/{group['fingerprint']}"
    assert (await api("POST", f"{where}/note", {"note": "known"}))["note"] == "known"
    assert (await api("GET", where))["note"] == "known"
    page = await api("GET", f"{where}/jobs", limit=2)
    assert len(page["items"]) == 2
    assert len((await api("GET", f"{where}/jobs", after=page["next"]))["items"]) == 1
    redriven = await api("POST", f"{where}/redrive", {"rate": 100, "reason": "mended"}, 202)
    assert api.headers["location"] == f"{API}/operations/{redriven['id']}"
    assert (await api("POST", "/operations", {"action": "cancel"}, 422))["code"] == "nothing_named"
    assert (await api("POST", "/operations", {"action": "cancel", "q": "words"}, 422))["code"] == "invalid_search"
    wanted = {"action": "discard", "q": "kind:fail state:dead_letter", "reason": "old"}
    second = await api("POST", "/operations", wanted, 202)
    assert [each["id"] for each in (await api("GET", "/operations"))["items"]] == [second["id"], redriven["id"]]
    assert (await api("POST", f"/operations/{second['id']}/cancel", {"reason": "stop"}))["state"] == "cancelled"
    assert (await api("GET", f"/operations/{second['id']}"))["cancelled_by"] == "tester"
    await asyncio.to_thread(app.operations.run, redriven["id"])
    assert (await api("GET", where))["open"] == 0
    await api("POST", "/dead-letters/none/discard", {"reason": "x"}, 404)


@pytest.mark.req("JF-14", "SC-16", "DP-16", "DP-4", "DP-18", "CX-16")
async def test_agents_limits_retention_rules_pauses_and_tenants(app: App, api: Api) -> None:
    agent = await api("PUT", "/agents/ada", {"kind": "mail", "max_payload": "1KB", "retry": "patient"})
    assert (agent["id"], agent["max_payload_bytes"]) == ("ada", 1024)
    big = {"kind": "mail", "agent": "ada", "payload": {"text": "x" * 2_000}}
    assert (await api("POST", "/jobs", big, 413))["code"] == "agent_payload_limit"
    await api("POST", "/agents/ada/disable", {"reason": "ill"})
    assert (await api("POST", "/jobs", {"kind": "mail", "agent": "ada"}, 409))["code"] == "agent_disabled"
    assert [each["id"] for each in (await api("GET", "/agents", disabled=True))["items"]] == ["ada"]
    assert (await api("POST", "/agents/ada/enable"))["disabled_at"] is None
    assert (await api("GET", "/agents/bob", status=404))["code"] == "agent_not_found"

    assert (await api("PUT", "/limits", {"queue": "mail", "concurrency": 2, "rate": "10/m"}))["concurrency"] == 2
    assert [(each["scope"], each["name"]) for each in (await api("GET", "/limits"))["items"]] == [("queue", "mail")]
    await api("DELETE", "/limits", status=204, queue="mail")
    assert (await api("DELETE", "/limits", status=404, queue="mail"))["code"] == "limit_not_found"

    assert (await api("PUT", "/queues/slow/aging", {"every": "10m", "step": 2}))["aging_step"] == 2
    assert [each["queue"] for each in (await api("GET", "/queues"))["items"]] == ["slow"]
    assert await api("PUT", "/queues/slow/aging", {"every": None}) is None

    kept = await api("PUT", "/retention", {"kind": "mail", "clean_after": "30d", "purge_after": "365d"})
    assert kept["clean_after"] == 30 * 86_400
    assert [each["kind"] for each in (await api("GET", "/retention"))["items"]] == ["mail"]
    assert [each["action"] for each in (await api("GET", "/retention/preview"))["items"]] == ["clean", "purge"]
    await api("DELETE", "/retention", status=204, kind="mail")

    assert (await api("PUT", "/payload-rules", {"kind": "mail", "signal_only": True, "forbidden": ["ssn"]}))[
        "forbidden"
    ] == ["ssn"]
    assert (await api("GET", "/payload-rules/effective", kind="mail"))["forbidden"] == ["ssn"]
    secret = {"kind": "mail", "payload": {"ssn": "1"}}
    assert (await api("POST", "/jobs", secret, 422))["code"] == "payload_forbidden"
    await api("DELETE", "/payload-rules", status=204, kind="mail")
    assert (await api("GET", "/payload-rules"))["items"] == []

    paused = {"kind": "mail", "reason": "SMTP is down", "until": "1h", "refuse_enqueue": True}
    assert (await api("PUT", "/pauses", paused))["tenant"] == "default"
    refused = await api("POST", "/jobs", {"kind": "mail"}, 503)
    assert (refused["code"], "SMTP is down" in refused["reason"]) == ("paused", True)
    assert 3_500 < int(api.headers["retry-after"]) <= 3_600
    assert [each["scope"] for each in (await api("GET", "/pauses"))["items"]] == ["kind"]
    await api("DELETE", "/pauses", status=204, kind="mail")
    assert (await api("DELETE", "/pauses", status=404, kind="mail"))["code"] == "not_paused"

    assert (await api("PUT", "/tenants/default", {"max_pending": 1, "title": "us"}))["max_pending"] == 1
    await api("POST", "/jobs", {"kind": "mail"}, 201)
    assert (await api("POST", "/jobs", {"kind": "mail"}, 429))["code"] == "tenant_full"
    assert (await api("GET", "/tenants/default"))["pending"] == 1
    assert [each["name"] for each in (await api("GET", "/tenants"))["items"]] == ["default"]
    assert (await api("GET", "/tenants/fair-queues"))["fair_queues"] == ["*"]
    off = {"on": False, "queue": "mail"}
    assert (await api("PUT", "/tenants/fair-queues", off))["fair_queues"] == ["*", "-mail"]
    assert (await api("GET", "/tenants/fair-queues"))["fair_queues"] == ["*", "-mail"]
    assert (await api("GET", "/tenants/registered-only")) == {"registered_only": False}
    assert (await api("GET", "/tenants/pins"))["items"] == []
    assert (await api("PUT", "/tenants/default", {"max_pending": 0, "max_running": 0}))["max_pending"] == 0
    await api("DELETE", "/tenants/default", status=204)


@pytest.mark.req("JF-14", "DP-6", "DP-12", "HK-5", "HF-4", "CX-4")
async def test_subscriptions_events_executors_reservations_usage_and_audit(app: App, api: Api) -> None:
    made = {"on": "order.paid", "kind": "receipt", "payload": {"order": "$.data.order"}}
    assert (await api("PUT", "/subscriptions/receipts", made))["name"] == "receipts"
    assert (await api("PUT", "/subscriptions/receipts", {**made, "queue": "slow"}))["job_options"]["queue"] == "slow"
    sent = await api("POST", "/events", {"name": "order.paid", "data": {"order": 7}, "key": "o-7"}, 201)
    assert (await api("POST", "/events", {"name": "order.paid", "data": {"order": 7}, "key": "o-7"}, 201)) == {
        **sent,
        "created": False,
    }
    assert (await api("GET", "/subscriptions/receipts/behind"))["behind"] == 1
    await asyncio.to_thread(app.run_worker, burst=True)
    await asyncio.to_thread(app.tick, limit=1)
    delivered = (await api("GET", "/subscriptions/receipts/deliveries"))["items"]
    assert len(delivered) <= 1
    assert (await api("POST", "/subscriptions/receipts/pause", {"reason": "busy"}))["paused_reason"] == "busy"
    await api("POST", "/subscriptions/receipts/resume", {"skip": True})
    await api("DELETE", "/subscriptions/receipts", status=204)
    assert (await api("GET", "/subscriptions"))["items"] == []

    app.enqueue("mail", {})
    assert len(list(app.events.read("reader"))) >= 1
    assert [each["name"] for each in (await api("GET", "/consumers"))["items"]] == ["reader"]
    await api("POST", "/consumers/reader/reset", {"to": "now"}, 204)
    await api("DELETE", "/consumers/reader", status=204)
    page = await api("GET", "/events", limit=1)
    assert page["items"][0]["type"] == "enqueue"
    rest = await api("GET", "/events", after=page["next"], kind="mail", type="enqueue")
    assert [event["kind"] for event in rest["items"]] in (["mail"], [])
    assert (await api("GET", "/events", after=rest["next"]))["items"] == []
    assert (await api("GET", "/events", status=422, after="no cursor"))["code"] == "invalid_cursor"
    assert (await api("GET", "/events/stream", status=422, after="no cursor"))["code"] == "invalid_cursor"

    assert (await api("PUT", "/executors/worker-1", {"role": "generator"}))["role"] == "generator"
    assert [each["label"] for each in (await api("GET", "/executors"))["items"]] == ["worker-1"]
    await api("DELETE", "/executors/worker-1", status=204)
    assert (await api("GET", "/reservations", ended=True))["items"] == []
    mine, next_one = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
    wanted = {"resource": "gpu-0", "ttl": "1m", "reason": "measuring"}
    first = await api("PUT", f"/reservations/{mine}", wanted)
    assert (first["state"], first["ahead"], first["running"], first["holder"]) == ("active", 0, 0, "tester")
    waits = await api("PUT", f"/reservations/{next_one}", {"resource": "gpu-0"})
    assert (waits["state"], waits["ahead"]) == ("waiting", 1)
    again = await api("PUT", f"/reservations/{mine}", wanted)
    assert again["expires_at"] >= first["expires_at"]
    assert (await api("GET", f"/reservations/{mine}"))["reason"] == "measuring"
    assert [each["id"] for each in (await api("GET", "/reservations"))["items"]] == [mine, next_one]
    await api("DELETE", f"/reservations/{mine}", status=204, reason="measured")
    assert (await api("GET", f"/reservations/{mine}"))["ended_why"] == "measured"
    assert (await api("PUT", f"/reservations/{mine}", wanted))["state"] == "released", (
        "a released reservation stays released"
    )
    assert (await api("PUT", f"/reservations/{next_one}", {"resource": "gpu-0"}))["state"] == "active"
    await api("DELETE", f"/reservations/{next_one}", status=204)
    for invalid, code in (
        ({"resource": "a", "queue": "b"}, "conflicting_options"),
        ({"resource": "*"}, "invalid_name"),
        ({"ttl": "2h"}, "invalid_duration"),
        ({"tll": 1}, "invalid_request"),
    ):
        assert (await api("PUT", f"/reservations/{next_one}", invalid, 422))["code"] == code
    assert (await api("PUT", "/reservations/mine", {}, 422))["code"] == "invalid_id"
    session_of(app).run(
        session_of(app).store.reservations.set(ReservationRequest(OTHER_TENANTS, "queue", "q", 60), "eve", "acme")
    )
    for method, document in (("PUT", {"queue": "q"}), ("GET", None), ("DELETE", None)):
        refused = await api(method, f"/reservations/{OTHER_TENANTS}", document, 404)
        assert refused["code"] == "reservation_not_found", "it belongs to another tenant"
    gone = "01900000-0000-7000-8000-000000000000"
    assert (await api("DELETE", f"/reservations/{gone}", status=404))["code"] == "reservation_not_found"

    await api("POST", "/usage/count")
    sums = (await api("GET", "/usage", by=["kind"], since="2020-01-01"))["items"]
    assert {each["kind"]: each["enqueued"] for each in sums}["mail"] == 1
    assert (await api("GET", "/health"))["verdict"] in ("ok", "warn", "critical")

    assert (await api("GET", "/audit/actions", subject="executor"))["items"] == []  # they belong to every tenant
    api.tenant = "*"
    actions = (await api("GET", "/audit/actions", subject="executor", limit=2))["items"]
    assert [each["name"] for each in actions] == ["worker-1", "worker-1"]
    api.tenant = "default"
    assert actions[0]["actor"] == "tester"
    await asyncio.to_thread(app.audit.seal)
    checked = await api("GET", "/audit/verify")
    assert (checked["report"]["ok"], checked["next"]) == (True, None)
    anchor = await api("GET", "/audit/anchor")
    assert anchor["anchor"] == f"{anchor['number']}:{anchor['digest']}"
    job = app.jobs.list(limit=1)[0].id
    assert {each["state"] for each in (await api("GET", f"/audit/jobs/{job}"))["items"]} == {"sealed"}


@pytest.mark.req("JF-14", "JF-1")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_objects_of_another_tenant_are_not_found(app: App) -> None:
    with app.tenant("acme"):
        job = app.enqueue("mail", {}).id
        app.templates.set("theirs", "mail")
        app.schedules.add("theirs", "@daily", kind="mail")
        app.agents.set("theirs")
        flow = app.workflow("publish")
        flow.add("mail")
        workflow = flow.start().id
        operation = app.operations.start("cancel", kind="mail").id
    async with client_of(app, role="admin", tenant="umbrella") as http:
        for method, path in (
            *(("GET", f"/jobs/{job}"), ("POST", f"/jobs/{job}/cancel"), ("GET", f"/jobs/{job}/result")),
            *(("GET", f"/workflows/{workflow}"), ("POST", f"/workflows/{workflow}/cancel")),
            *(("GET", f"/operations/{operation}"), ("POST", f"/operations/{operation}/cancel")),
            *(("GET", "/templates/theirs"), ("DELETE", "/templates/theirs"), ("GET", "/schedules/theirs")),
            *(("DELETE", "/schedules/theirs"), ("GET", "/agents/theirs"), ("POST", "/agents/theirs/enable")),
        ):
            answer = await http.request(method, API + path, json={} if method == "POST" else None)
            assert answer.status_code == 404, (method, path, answer.text)
        for noun in ("jobs", "workflows", "operations", "templates", "schedules", "agents", "approvals", "events"):
            assert (await http.get(f"{API}/{noun}")).json()["items"] == [], noun


@pytest.mark.req("DP-25", "DP-27", "JF-14")
async def test_kinds_event_types_and_policies(app: App, api: Api) -> None:
    assert (await api("PUT", "/kinds/mail.send", {"description": "Send it."}))["description"] == "Send it."
    assert [each["name"] for each in (await api("GET", "/kinds"))["items"]] == ["mail.send"]
    assert (await api("GET", "/kinds/mail.send"))["name"] == "mail.send"
    schema = {"type": "object", "required": ["order"]}
    made = await api("PUT", "/event-types/order.paid", {"domain": "billing", "schema": schema})
    assert (made["domain"], made["schema"]) == ("billing", schema)
    assert (await api("GET", "/event-types", domain="other"))["items"] == []
    assert (await api("GET", "/policies"))["unknown_kinds"] == "accept"
    everything = {"unknown_kinds": "refuse", "unknown_agents": "warn", "unknown_event_types": "refuse"}
    assert (await api("PUT", "/policies", everything))["unknown_agents"] == "warn"
    refused = await api("POST", "/jobs", {"kind": "typo"}, 422)
    assert (refused["code"], bool(refused["fix"])) == ("kind_unregistered", True)
    await api("POST", "/jobs", {"kind": "mail.send", "agent": "stranger"}, 201)
    (seen,) = (await api("GET", "/policies/unregistered"))["items"]
    assert (seen["registry"], seen["name"]) == ("agent", "stranger")
    assert (await api("POST", "/events", {"name": "order.paid"}, 422))["code"] == "event_data_invalid"
    assert (await api("POST", "/events", {"name": "other"}, 422))["code"] == "event_type_unregistered"
    await api("PUT", "/policies", {"unknown_kinds": "maybe"}, 422)
    await api("PUT", "/policies", {"key_required": ["queue:x"]}, 422)
    assert (await api("PUT", "/policies", {"key_required": ["kind:mail.send"]}))["key_required"] == ["kind:mail.send"]
    refused = await api("POST", "/jobs", {"kind": "mail.send"}, 422)
    assert (refused["code"], bool(refused["fix"])) == ("key_required", True)
    assert (await api("PUT", "/policies", {"key_required": []}))["key_required"] == []
    for path in ("/kinds/mail.send", "/event-types/order.paid"):
        await api("DELETE", path, status=204)
        await api("GET", path, status=404)
    async with client_of(app, role="operator") as operator:
        for path, body in (("/kinds/x", {}), ("/event-types/x", {}), ("/policies", {"unknown_kinds": "accept"})):
            assert (await operator.put(API + path, json=body)).status_code == 403


@pytest.mark.req("DP-28")
async def test_archives_over_http(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app.archives._artifacts = files = open_artifacts(tmp_path / "artifacts")
    assert files is not None
    read, threads = files.file, set[str]()

    def noted(ref: str, *, tenant: str) -> AbstractContextManager[Path]:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return read(ref, tenant=tenant)

    monkeypatch.setattr(files, "file", noted)
    job_id = put_one(session_of(app).store)
    settle(session_of(app).store, take(session_of(app).store))
    async with client_of(app) as http:
        body = {"clean_after": 3600, "archive": True}
        assert (await http.put("/api/v1/retention", json=body)).json()["archive"]
        forward(session_of(app).store, 4000)
        assert (await http.post("/api/v1/archives/run")).json() == {"jobs": 1, "archives": 1}
        (archive,) = (await http.get("/api/v1/archives")).json()["items"]
        assert (archive["jobs"], archive["last_job"]) == (1, job_id)
        checked = (await http.post(f"/api/v1/archives/{archive['id']}/verify")).json()
        assert checked == {"archive": archive["id"], "jobs": 1, "problems": []}
        shown = (await http.get(f"/api/v1/archives/jobs/{job_id}")).json()
        assert shown["job"]["id"] == job_id
        assert (await http.get(f"/api/v1/archives/jobs/{archive['id']}")).status_code == 404
        assert threads == {"holdfast-slow-reads"}, "few at a time"
    async with client_of(app, role="operator") as http:
        assert (await http.get(f"/api/v1/archives/jobs/{job_id}")).status_code == 403
        assert (await http.post("/api/v1/archives/run")).status_code == 403
        assert (await http.post(f"/api/v1/archives/{archive['id']}/verify")).status_code == 403
        assert (await http.get("/api/v1/archives")).status_code == 200
    async with client_of(app, role="admin", tenant="acme") as http:
        assert (await http.get("/api/v1/archives")).json()["items"] == []
        assert (await http.get(f"/api/v1/archives/jobs/{job_id}")).status_code == 404
