"""Every noun of the app over HTTP, once round: made, looked at, changed, taken away."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast import App
from holdfast.features.limits.model import Ask
from tests.api.conftest import client_of

API = "/api/v1"
SOMEBODYS = "01900000-0000-7000-8000-000000000009"


class Asking:
    """Each call says which answer it expects, and answers its body."""

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
def asking(http: httpx2.AsyncClient) -> Asking:
    return Asking(http)


@pytest.mark.req("JF-14", "SC-8", "SC-9")
async def test_schedules_and_templates(asking: Asking) -> None:
    put = await asking("PUT", "/templates/monthly/report", {"kind": "report", "payload": {"a": 1}, "queue": "slow"})
    assert (put["name"], put["version"], put["options"]) == ("monthly/report", 1, {"queue": "slow"})
    await asking("PUT", "/templates/monthly/report", {"kind": "report", "payload": {"a": 2}})
    assert [each["version"] for each in (await asking("GET", "/templates/monthly/report/versions"))["items"]] == [2, 1]
    first = await asking("GET", "/templates/monthly/report/versions", limit=1)
    rest = await asking("GET", "/templates/monthly/report/versions", after=first["next"])
    assert [each["version"] for each in first["items"] + rest["items"]] == [2, 1]
    assert (rest["next"], (await asking("GET", "/templates/monthly/report", version=1))["payload"]) == (None, {"a": 1})
    made = await asking("POST", "/templates/monthly/report/enqueue", {"arguments": {"b": 3}, "priority": 4}, 201)
    job = (await asking("GET", f"/jobs/{made['id']}"))["job"]
    assert (job["payload"], job["priority"]) == ({"a": 2, "b": 3}, 4)

    new = {"name": "nightly", "timing": "0 3 * * *", "tz": "Europe/Paris", "template": "monthly/report", "jitter": "1m"}
    assert (await asking("POST", "/schedules", new, 201))["state"] == "active"
    assert (await asking("POST", "/schedules", new, 409))["code"] == "schedule_exists"
    assert (await asking("POST", "/schedules", new | {"name": "x", "timing": "nonsense"}, 422))["refused"]
    edited = await asking("PATCH", "/schedules/nightly", {"timing": "0 4 * * *", "priority": 9})
    assert (edited["timing"], edited["options"]) == ("0 4 * * *", {"priority": 9})
    assert (await asking("PATCH", "/schedules/nightly", {"priority": None}))["options"] == {}
    times = (await asking("GET", "/schedules/nightly/next", count=3))["items"]
    assert [each["local"][11:16] for each in times] == ["04:00"] * 3
    assert (await asking("POST", "/schedules/nightly/pause"))["state"] == "paused"
    assert [each["name"] for each in (await asking("GET", "/schedules", state="paused"))["items"]] == ["nightly"]
    assert (await asking("POST", "/schedules/nightly/resume"))["state"] == "active"
    ran = (await asking("POST", "/schedules/nightly/run-now", status=201))["job_id"]
    assert (await asking("GET", f"/jobs/{ran}"))["made_from"]["schedule"] == "nightly"
    assert (await asking("GET", "/schedules/nightly/history"))["items"][0]["job_id"] == ran
    await asking("DELETE", "/schedules/nightly", status=204)
    assert (await asking("GET", "/schedules/nightly", status=404))["code"] == "schedule_not_found"
    await asking("DELETE", "/templates/monthly/report", status=204)
    assert (await asking("GET", "/templates"))["items"] == []


@pytest.mark.req("JF-14", "DP-14", "DP-15")
async def test_workflows_operations_and_dead_letters(app: App, asking: Asking) -> None:
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
    started = await asking("POST", "/workflows", drawn, 201)
    assert asking.headers["location"] == f"{API}/workflows/{started['id']}"
    assert (await asking("POST", "/workflows", drawn))["created"] is False
    other = drawn | {"edges": []}
    assert (await asking("POST", "/workflows", other, 409))["code"] == "idempotency_conflict"
    circle = {**drawn, "key": None, "edges": [*drawn["edges"], {"parent": "b", "child": "a"}]}
    assert (await asking("POST", "/workflows", circle, 422))["code"] == "workflow_cycle"
    more = {"nodes": [{"name": "c", "kind": "good"}], "edges": [{"parent": "b", "child": "c"}]}
    await asking("POST", f"/workflows/{started['id']}/jobs", more, 201)
    graph = await asking("GET", f"/workflows/{started['id']}")
    assert (graph["workflow"]["status"], len(graph["nodes"]), len(graph["edges"])) == ("active", 3, 2)
    assert [each["id"] for each in (await asking("GET", "/workflows", over=False))["items"]] == [started["id"]]
    assert (await asking("POST", f"/workflows/{started['id']}/cancel", {"reason": "no"}))["jobs"] == 3
    assert (await asking("POST", f"/workflows/{started['id']}/resume", status=409))["code"] == "nothing_to_resume"

    for n in range(3):
        app.enqueue("fail", {"n": n})
    await asyncio.to_thread(app.run_worker, burst=True)
    group = (await asking("GET", "/dead-letters", order="count", since="1h"))["items"][0]
    assert (group["open"], group["kind"]) == (3, "fail")
    where = f"/dead-letters/{group['fingerprint']}"
    assert (await asking("POST", f"{where}/note", {"note": "known"}))["note"] == "known"
    assert (await asking("GET", where))["note"] == "known"
    page = await asking("GET", f"{where}/jobs", limit=2)
    assert len(page["items"]) == 2
    assert len((await asking("GET", f"{where}/jobs", after=page["next"]))["items"]) == 1
    redriven = await asking("POST", f"{where}/redrive", {"rate": 100, "reason": "mended"}, 202)
    assert asking.headers["location"] == f"{API}/operations/{redriven['id']}"
    assert (await asking("POST", "/operations", {"action": "cancel"}, 422))["code"] == "nothing_named"
    assert (await asking("POST", "/operations", {"action": "cancel", "q": "words"}, 422))["code"] == "invalid_search"
    wanted = {"action": "discard", "q": "kind:fail state:dead_letter", "reason": "old"}
    second = await asking("POST", "/operations", wanted, 202)
    assert [each["id"] for each in (await asking("GET", "/operations"))["items"]] == [second["id"], redriven["id"]]
    assert (await asking("POST", f"/operations/{second['id']}/cancel", {"reason": "stop"}))["state"] == "cancelled"
    assert (await asking("GET", f"/operations/{second['id']}"))["cancelled_by"] == "tester"
    await asyncio.to_thread(app.operations.run, redriven["id"])
    assert (await asking("GET", where))["open"] == 0
    await asking("POST", "/dead-letters/none/discard", {"reason": "x"}, 404)


@pytest.mark.req("JF-14", "SC-16", "DP-16", "DP-4", "DP-18", "CX-16")
async def test_what_jobs_are_held_to(app: App, asking: Asking) -> None:
    agent = await asking("PUT", "/agents/ada", {"kind": "mail", "max_payload": "1KB", "retry": "patient"})
    assert (agent["id"], agent["max_payload_bytes"]) == ("ada", 1024)
    big = {"kind": "mail", "agent": "ada", "payload": {"text": "x" * 2_000}}
    assert (await asking("POST", "/jobs", big, 413))["code"] == "agent_payload_limit"
    await asking("POST", "/agents/ada/disable", {"reason": "ill"})
    assert (await asking("POST", "/jobs", {"kind": "mail", "agent": "ada"}, 409))["code"] == "agent_disabled"
    assert [each["id"] for each in (await asking("GET", "/agents", disabled=True))["items"]] == ["ada"]
    assert (await asking("POST", "/agents/ada/enable"))["disabled_at"] is None
    assert (await asking("GET", "/agents/bob", status=404))["code"] == "agent_not_found"

    assert (await asking("PUT", "/limits", {"queue": "mail", "concurrency": 2, "rate": "10/m"}))["concurrency"] == 2
    assert [(each["scope"], each["name"]) for each in (await asking("GET", "/limits"))["items"]] == [("queue", "mail")]
    await asking("DELETE", "/limits", status=204, queue="mail")
    assert (await asking("DELETE", "/limits", status=404, queue="mail"))["code"] == "limit_not_found"

    assert (await asking("PUT", "/queues/slow/aging", {"every": "10m", "step": 2}))["aging_step"] == 2
    assert [each["queue"] for each in (await asking("GET", "/queues"))["items"]] == ["slow"]
    assert await asking("PUT", "/queues/slow/aging", {"every": None}) is None

    kept = await asking("PUT", "/retention", {"kind": "mail", "clean_after": "30d", "purge_after": "365d"})
    assert kept["clean_after"] == 30 * 86_400
    assert [each["kind"] for each in (await asking("GET", "/retention"))["items"]] == ["mail"]
    assert [each["action"] for each in (await asking("GET", "/retention/preview"))["items"]] == ["clean", "purge"]
    await asking("DELETE", "/retention", status=204, kind="mail")

    assert (await asking("PUT", "/payload-rules", {"kind": "mail", "signal_only": True, "forbidden": ["ssn"]}))[
        "forbidden"
    ] == ["ssn"]
    assert (await asking("GET", "/payload-rules/effective", kind="mail"))["forbidden"] == ["ssn"]
    secret = {"kind": "mail", "payload": {"ssn": "1"}}
    assert (await asking("POST", "/jobs", secret, 422))["code"] == "payload_forbidden"
    await asking("DELETE", "/payload-rules", status=204, kind="mail")
    assert (await asking("GET", "/payload-rules"))["items"] == []

    paused = {"kind": "mail", "reason": "SMTP is down", "until": "1h", "refuse_enqueue": True}
    assert (await asking("POST", "/pauses", paused))["tenant"] == "default"
    refused = await asking("POST", "/jobs", {"kind": "mail"}, 503)
    assert (refused["code"], "SMTP is down" in refused["reason"]) == ("paused", True)
    assert 3_500 < int(asking.headers["retry-after"]) <= 3_600
    assert [each["scope"] for each in (await asking("GET", "/pauses"))["items"]] == ["kind"]
    await asking("POST", "/pauses/resume", {"kind": "mail"}, 204)
    assert (await asking("POST", "/pauses/resume", {"kind": "mail"}, 404))["code"] == "not_paused"

    assert (await asking("PUT", "/tenants/default", {"max_pending": 1, "title": "us"}))["max_pending"] == 1
    await asking("POST", "/jobs", {"kind": "mail"}, 201)
    assert (await asking("POST", "/jobs", {"kind": "mail"}, 429))["code"] == "tenant_full"
    assert (await asking("GET", "/tenants/default"))["pending"] == 1
    assert [each["name"] for each in (await asking("GET", "/tenants"))["items"]] == ["default"]
    assert (await asking("GET", "/tenants/fair"))["fair"] == ["*"]
    assert (await asking("POST", "/tenants/fair", {"on": False, "queue": "mail"}))["fair"] == ["*", "-mail"]
    assert (await asking("GET", "/tenants/fair"))["fair"] == ["*", "-mail"]
    assert (await asking("GET", "/tenants/pins"))["items"] == []
    assert (await asking("PUT", "/tenants/default", {"max_pending": 0, "max_running": 0}))["max_pending"] == 0
    await asking("DELETE", "/tenants/default", status=204)


@pytest.mark.req("JF-14", "DP-6", "DP-12", "HK-5", "HF-4", "CX-4")
async def test_who_executes_who_listens_and_what_was_done(app: App, asking: Asking) -> None:
    made = {"name": "receipts", "on": "order.paid", "kind": "receipt", "payload": {"order": "$.data.order"}}
    assert (await asking("POST", "/subscriptions", made, 201))["name"] == "receipts"
    assert (await asking("POST", "/subscriptions", made, 409))["code"] == "subscription_exists"
    told = await asking("POST", "/events", {"name": "order.paid", "data": {"order": 7}, "key": "o-7"}, 201)
    assert (await asking("POST", "/events", {"name": "order.paid", "data": {"order": 7}, "key": "o-7"}, 201)) == {
        **told,
        "created": False,
    }
    assert (await asking("GET", "/subscriptions/receipts"))["behind"] == 1
    await asyncio.to_thread(app.run_worker, burst=True)
    await asyncio.to_thread(app.tick, limit=1)
    delivered = (await asking("GET", "/subscriptions/receipts/deliveries"))["items"]
    assert len(delivered) <= 1
    assert (await asking("POST", "/subscriptions/receipts/pause", {"reason": "busy"}))["paused_reason"] == "busy"
    await asking("POST", "/subscriptions/receipts/resume", {"skip": True})
    await asking("DELETE", "/subscriptions/receipts", status=204)
    assert (await asking("GET", "/subscriptions"))["items"] == []

    app.enqueue("mail", {})
    assert len(list(app.events.read("reader"))) >= 1
    assert [each["name"] for each in (await asking("GET", "/consumers"))["items"]] == ["reader"]
    await asking("POST", "/consumers/reader/reset", {"to": "now"}, 204)
    await asking("DELETE", "/consumers/reader", status=204)
    page = await asking("GET", "/events", limit=1)
    assert page["items"][0]["type"] == "enqueue"
    rest = await asking("GET", "/events", after=page["next"], kind="mail", type="enqueue")
    assert [event["kind"] for event in rest["items"]] in (["mail"], [])
    assert (await asking("GET", "/events", after=rest["next"]))["items"] == []
    assert (await asking("GET", "/events", status=422, after="no cursor"))["code"] == "invalid_cursor"
    assert (await asking("GET", "/events/stream", status=422, after="no cursor"))["code"] == "invalid_cursor"

    assert (await asking("PUT", "/executors/worker-1", {"role": "generator"}))["role"] == "generator"
    assert [each["label"] for each in (await asking("GET", "/executors"))["items"]] == ["worker-1"]
    await asking("DELETE", "/executors/worker-1", status=204)
    assert (await asking("GET", "/reservations", ended=True))["items"] == []
    mine, next_one = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
    wanted = {"resource": "gpu-0", "ttl": "1m", "reason": "measuring"}
    first = await asking("PUT", f"/reservations/{mine}", wanted)
    assert (first["state"], first["ahead"], first["running"], first["holder"]) == ("active", 0, 0, "tester")
    waits = await asking("PUT", f"/reservations/{next_one}", {"resource": "gpu-0"})
    assert (waits["state"], waits["ahead"]) == ("waiting", 1)
    again = await asking("PUT", f"/reservations/{mine}", wanted)
    assert again["expires_at"] >= first["expires_at"]
    assert (await asking("GET", f"/reservations/{mine}"))["reason"] == "measuring"
    assert [each["id"] for each in (await asking("GET", "/reservations"))["items"]] == [mine, next_one]
    await asking("DELETE", f"/reservations/{mine}", status=204, reason="measured")
    assert (await asking("GET", f"/reservations/{mine}"))["ended_why"] == "measured"
    assert (await asking("PUT", f"/reservations/{mine}", wanted))["state"] == "released", "it does not come back"
    assert (await asking("PUT", f"/reservations/{next_one}", {"resource": "gpu-0"}))["state"] == "active"
    await asking("DELETE", f"/reservations/{next_one}", status=204)
    for said, code in (
        ({"resource": "a", "queue": "b"}, "conflicting_options"),
        ({"resource": "*"}, "invalid_name"),
        ({"ttl": "2h"}, "invalid_duration"),
        ({"tll": 1}, "invalid_request"),
    ):
        assert (await asking("PUT", f"/reservations/{next_one}", said, 422))["code"] == code
    assert (await asking("PUT", "/reservations/mine", {}, 422))["code"] == "invalid_id"
    app._session.run(app._session.store.reservations.set(Ask(SOMEBODYS, "queue", "q", 60), "eve", "acme"))
    for method, body in (("PUT", {"queue": "q"}), ("GET", None), ("DELETE", None)):
        refused = await asking(method, f"/reservations/{SOMEBODYS}", body, 404)
        assert refused["code"] == "reservation_not_found", "another tenant's is not there"
    gone = "01900000-0000-7000-8000-000000000000"
    assert (await asking("DELETE", f"/reservations/{gone}", status=404))["code"] == "reservation_not_found"

    await asking("POST", "/usage/count", status=204)
    sums = (await asking("GET", "/usage", by=["kind"], since="2020-01-01"))["items"]
    assert {each["kind"]: each["enqueued"] for each in sums}["mail"] == 1
    assert (await asking("GET", "/health"))["verdict"] in ("ok", "warn", "critical")

    assert (await asking("GET", "/audit/actions", subject="executor"))["items"] == []  # they are everybody's
    asking.tenant = "*"
    actions = (await asking("GET", "/audit/actions", subject="executor", limit=2))["items"]
    assert [each["name"] for each in actions] == ["worker-1", "worker-1"]
    asking.tenant = "default"
    assert actions[0]["actor"] == "tester"
    await asyncio.to_thread(app.audit.seal)
    checked = await asking("GET", "/audit/verify")
    assert (checked["report"]["ok"], checked["next"]) == (True, None)
    assert (await asking("GET", "/audit/anchor")).count(":") >= 1
    job = app.jobs.list(limit=1)[0].id
    assert {each["state"] for each in (await asking("GET", f"/audit/jobs/{job}"))["items"]} == {"sealed"}


@pytest.mark.req("JF-14", "JF-1")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_nothing_of_another_tenant_is_reached_by_its_name_or_id(app: App) -> None:
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


@pytest.mark.req("DP-25", "JF-14")
async def test_registries_and_policies(app: App, asking: Asking) -> None:
    assert (await asking("PUT", "/kinds/mail.send", {"description": "Send it."}))["description"] == "Send it."
    assert [each["name"] for each in (await asking("GET", "/kinds"))["items"]] == ["mail.send"]
    assert (await asking("GET", "/kinds/mail.send"))["name"] == "mail.send"
    schema = {"type": "object", "required": ["order"]}
    made = await asking("PUT", "/event-types/order.paid", {"domain": "billing", "schema": schema})
    assert (made["domain"], made["schema"]) == ("billing", schema)
    assert (await asking("GET", "/event-types", domain="other"))["items"] == []
    assert (await asking("GET", "/policies"))["unknown_kinds"] == "accept"
    everything = {"unknown_kinds": "refuse", "unknown_agents": "warn", "unknown_event_types": "refuse"}
    assert (await asking("PUT", "/policies", everything))["unknown_agents"] == "warn"
    refused = await asking("POST", "/jobs", {"kind": "typo"}, 422)
    assert (refused["code"], bool(refused["fix"])) == ("kind_unregistered", True)
    await asking("POST", "/jobs", {"kind": "mail.send", "agent": "stranger"}, 201)
    (seen,) = (await asking("GET", "/policies/unregistered"))["items"]
    assert (seen["registry"], seen["name"]) == ("agent", "stranger")
    assert (await asking("POST", "/events", {"name": "order.paid"}, 422))["code"] == "event_data_invalid"
    assert (await asking("POST", "/events", {"name": "other"}, 422))["code"] == "event_type_unregistered"
    await asking("PUT", "/policies", {"unknown_kinds": "maybe"}, 422)
    for path in ("/kinds/mail.send", "/event-types/order.paid"):
        await asking("DELETE", path, status=204)
        await asking("GET", path, status=404)
    async with client_of(app, role="operator") as operator:
        for path, body in (("/kinds/x", {}), ("/event-types/x", {}), ("/policies", {"unknown_kinds": "accept"})):
            assert (await operator.put(API + path, json=body)).status_code == 403
