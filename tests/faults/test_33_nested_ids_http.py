"""Faults 31 to 33 over HTTP: with one tenant's token, nothing of another tenant can be read or changed.

The routes come from the OpenAPI document, so that new routes are included automatically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.limits.model import ReservationRequest
from holdfast.server.app import make_service
from holdfast.server.sessions import tokens_of
from holdfast.stores.requests import JobFilter
from tests.api.conftest import HERE
from tests.contract.test_role_operations import AFTER, furnish
from tests.faults.test_33_nested_ids import OWNER, STRANGER, rows_of
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.stores import new_id
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-1", "JF-14")

METHODS = ("get", "post", "put", "patch", "delete")
STREAM = "/api/v1/events/stream"
CANARY = "kept by the owner"
PAGES = (
    *("/jobs/{job_id}", "/approvals/{approval_id}", "/workflows/{workflow_id}", "/dead-letters/{group}"),
    *("/operations/{operation_id}", "/dead-letters/{group}/jobs/{job_id}/edit"),
)
OWNED = {
    *("/jobs/{job_id}", "/jobs/{job_id}/history", "/jobs/{job_id}/attempts", "/jobs/{job_id}/why"),
    *("/jobs/{job_id}/result", "/approvals/{approval_id}", "/workflows/{workflow_id}", "/dead-letters/{group}"),
    *(
        "/workflows/{workflow_id}/graph",
        "/operations/{operation_id}",
        "/reservations/{reservation_id}",
        "/schedules/{name}",
        "/archives/jobs/{job_id}",
    ),
}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS and path.startswith("/api/v1/") and path != STREAM:
                yield method, path, operation


def body_of(document: dict[str, Any], operation: dict[str, Any], job: str) -> Any:
    """Make the smallest valid body of an operation; its job ids are `job`."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else _minimal(document, content["schema"], "", job)


def _minimal(document: dict[str, Any], schema: dict[str, Any], name: str, job: str) -> Any:
    if "$ref" in schema:
        return _minimal(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name, job)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        if choice.get("type") != "null":
            return _minimal(document, choice, name, job)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", [])
            return {each: _minimal(document, schema["properties"][each], each, job) for each in wanted}
        case "array":
            return [_minimal(document, schema["items"], name, job)] * schema.get("minItems", 0)
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
        case "string":
            return job if name in ("job", "id", "parent") else "2100-01-01T00:00:00Z" if "format" in schema else "x"
    return {}


def create_objects(app: App, by_hand: ByHand) -> dict[str, str]:
    """Create the owner's objects; returns their ids by the names of path parameters."""
    store = session_of(app).store
    ids, run = furnish(store, by_hand), store.run
    run(store.operations.start(NewOperation(ids["bulk"], "redrive", CANARY), JobFilter(tenant=OWNER), "ada", OWNER))
    reservation = ReservationRequest(new_id(), "queue", "theirs", 3600)
    run(store.reservations.set(reservation, "ada", OWNER))
    run(store.subscriptions.set(AFTER, new_id(), "ada", OWNER))
    run(store.ledger.save_cursor("billing", "0", None, OWNER))
    group = run(store.dead_letters.group_of(ids["dead_letter"], OWNER))
    assert group is not None
    run(store.dead_letters.note(group.fingerprint, CANARY, "ada", OWNER))
    app.retention.set(state="dead_letter", purge_after="1s", archive=True, tenant=OWNER)
    until(lambda: app.archives.run(tenant=OWNER).jobs, "the dead letter is archived")
    (archive,) = app.archives.list(tenant=OWNER)
    app.usage.count()  # as any sweep does, for the whole database
    return {
        "job_id": ids["dead_letter"],
        "archive_id": archive.id,
        "approval_id": ids["approval"],
        "workflow_id": ids["workflow"],
        "operation_id": ids["bulk"],
        "reservation_id": reservation.id,
        "lease": ids["other"],
        "token_id": ids["token"],
        "worker": ids["other"],
        "group": group.fingerprint,
        "id": "planner",
        "name": "hourly",
        "label": "worker",
        "queue": "theirs",
        "login": "theirs",
        "token": "hfa_nobody",
    }


@pytest.mark.slow
async def test_objects_of_another_tenant_are_not_found_over_http(url: str, tmp_path: Path) -> None:
    files = tmp_path / "artifacts"
    with (
        closing(App(url, tenant=STRANGER, enqueued_by="eve", artifacts=files)) as app,
        closing(open_by_hand(url)) as by_hand,
    ):
        app.migrate()
        theirs = create_objects(app, by_hand)
        nowhere = {name: new_id() if len(value) == 36 else f"no_{name}_here" for name, value in theirs.items()}
        token = app.tokens.issue("eve", roles=["admin"]).text
        before = rows_of(by_hand, OWNER)
        service = make_service(app, authenticate=tokens_of(app))
        document = service.openapi()
        secrets = {value for value in theirs.values() if len(value) >= 16} | {CANARY}
        leaks: list[str] = []
        tried = 0
        transport = httpx2.ASGITransport(service, raise_app_exceptions=False)
        # The tenant header has no effect for this token.
        eve = {"Authorization": f"Bearer {token}", "Holdfast-Tenant": OWNER}
        async with httpx2.AsyncClient(transport=transport, base_url=HERE, headers=eve, timeout=30) as http:
            for method, path, operation in operations(document):
                if path.startswith("/api/v1/executors") or path in ("/api/v1/pauses", "/api/v1/usage/count"):
                    continue  # objects of the whole database; other tests cover the roles of tokens
                responses = []
                # This route creates a missing object with the given id.
                creates = (method, path) == ("put", "/api/v1/reservations/{reservation_id}")
                for known in (theirs, nowhere) if "{" in path and not creates else (theirs,):
                    body = body_of(document, operation, known["job_id"])
                    response = await http.request(method, path.format(**known), json=body)
                    shown = response.text
                    for name, value in known.items():
                        if f"{{{name}}}" in path:
                            shown = shown.replace(value, name)
                    responses.append((response.status_code, shown if response.is_error else ""))
                    # The response may repeat ids of the request, but no others.
                    requested = {known[name] for name in known if f"{{{name}}}" in path} | {known["job_id"]}
                    if any(secret in response.text for secret in secrets - requested):
                        leaks.append(f"{method} {path}: {response.text[:200]}")
                assert responses[0] == responses[-1], f"{method} {path} reveals that the object exists"
                assert responses[0][0] == 404 or not creates, (method, path)
                assert responses[0][0] != 500, (method, path)
                tried += 1
                stranger = await http.request(method, path.format(**theirs), headers={"Authorization": ""})
                open_to_all = operation.get("security") is None
                assert open_to_all or stranger.status_code == 401, f"{method} {path} without a token"
            for path, body in nested(theirs, await create_own(http)):
                response = await http.post(f"/api/v1{path}", json=body)
                assert refused(response), f"{path} {body}: {response.text}"
            after = rows_of(by_hand, OWNER)
            # The control: the owner can read all these objects.
            owner = {"Authorization": f"Bearer {app.tokens.issue('ada', roles=['admin'], tenant=OWNER).text}"}
            served: set[str] = set()
            for method, path, operation in operations(document):
                if method == "get" and "{" in path and operation.get("security") is not None:
                    response = await http.get(path.format(**theirs), headers=owner)
                    if response.is_success:
                        served.add(path.removeprefix("/api/v1"))
            assert served >= OWNED, OWNED - served
            for pattern in PAGES:
                page = pattern.format(**theirs)
                assert (await http.get(page, headers=owner)).status_code == 200, page
                assert (await http.get(page)).status_code == 404, page
        await session_of(app).store.leave_loop()
        assert tried > 100
        assert leaks == []
        assert {table for table, rows in after.items() if before.get(table, []) != rows} == set()


async def create_own(http: httpx2.AsyncClient) -> dict[str, str]:
    job = (await http.post("/api/v1/jobs", json={"kind": "own", "queue": "own"})).json()["id"]
    lease = (await http.post("/api/v1/leases", json={})).json()["lease"]
    return {"job": job, "lease": lease}


def nested(theirs: dict[str, str], mine: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Requests for objects of the caller with ids of the other tenant in the body."""
    job, lease = theirs["job_id"], f"/leases/{mine['lease']}"
    attempt = {"job": job, "attempt": 1}
    return [
        ("/jobs", {"kind": "x", "parent": job}),
        (f"/jobs/{mine['job']}/move", {"before": job}),
        (f"{lease}/settle", {**attempt, "outcome": "succeeded"}),
        (f"{lease}/settle", {"settlements": [{**attempt, "outcome": "failed"}]}),
        (f"{lease}/checkpoint", {**attempt, "name": "n", "value": 1}),
        (f"{lease}/release", {"jobs": [{"id": job, "attempt": 1}]}),
    ]


def refused(response: httpx2.Response) -> bool:
    document = response.json()
    verdicts = document.get("settlements")
    if verdicts is not None:
        return [each["settled"] for each in verdicts] == [False]
    return response.is_client_error or bool(document.get("refused"))


@pytest.mark.req("JF-2")
async def test_tenants_on_shared_connections_read_only_their_jobs(postgres_url: str) -> None:
    """Fault 32: requests of several tenants interleave; some fail within a transaction, and some are cancelled."""
    with closing(App(postgres_url)) as app:
        session_of(app).make_ready()
        names = ["acme", "umbrella", "initech"]
        tokens = {name: app.tokens.issue("x", roles=["admin"], tenant=name).text for name in names}
        transport = httpx2.ASGITransport(make_service(app, authenticate=tokens_of(app)), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=HERE, timeout=60) as http:

            async def act(name: str, n: int) -> list[str]:
                who = {"Authorization": f"Bearer {tokens[name]}"}
                made = await http.post("/api/v1/jobs", headers=who, json={"kind": f"of.{name}", "key": f"k{n % 3}"})
                assert made.status_code in (200, 201), made.text
                wrong = await http.post("/api/v1/jobs", headers=who, json={"kind": "x", "parent": new_id()})
                assert wrong.is_client_error
                if n % 4 == 0:
                    cancelled = asyncio.create_task(http.get("/api/v1/jobs", headers=who))
                    await asyncio.sleep(0)
                    cancelled.cancel()
                listed = await http.get("/api/v1/jobs", headers=who)
                return [job["kind"] for job in listed.json()["items"]]

            rounds = [(name, act(name, n)) for n in range(12) for name in names]
            seen = await asyncio.gather(*(work for _, work in rounds))
            for (name, _), kinds in zip(rounds, seen, strict=True):
                assert set(kinds) == {f"of.{name}"}
                assert len(kinds) <= 3
        await session_of(app).store.leave_loop()
