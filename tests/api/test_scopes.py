"""Every route with every role: access follows the scope that the route declares."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.tokens.model import ROLES, Role, Scope, scopes_of
from holdfast.server.api import every_route, scope_of
from holdfast.server.app import make_service
from holdfast.server.auth import Authenticate, Identity
from tests.api.conftest import HERE

# Routes with their own credential, or without private data.
PUBLIC = {"livez", "readyz", "show_question", "decide_question"}
ENQUEUES = {"enqueue_job", "enqueue_jobs", "send_event", "enqueue_template", "start_workflow", "extend_workflow"}
DECIDES = {"approve", "deny"}
ADMINISTERS = {
    *("issue_approval_token", "set_agent", "disable_agent", "enable_agent", "set_executor", "remove_executor"),
    *("set_limit", "remove_limit", "set_retention", "remove_retention", "set_payload_rule", "remove_payload_rule"),
    *(
        "set_queue_aging",
        "set_tenant",
        "remove_tenant",
        "set_fair_queues",
        "set_registered_only",
        "issue_token",
        "revoke_token",
        "list_tokens",
    ),
    *("set_connector", "remove_connector", "list_pins", "pin_login", "unpin_login"),
    *("run_archives", "verify_archive", "read_archived_job"),
    *("set_kind", "remove_kind", "set_event_type", "remove_event_type", "set_policies"),
    *(
        "add_webhook",
        "set_webhook",
        "remove_webhook",
        "rotate_secret_webhook",
        "rotate_secret",
        "disable_webhook",
        "enable_webhook",
    ),
}
WORKS = {"tick", "open_lease", "renew_lease", "end_lease", "claim", "checkpoint", "settle", "release"}
ENDLESS = {"stream_events"}
SOME_ID = "01900000-0000-7000-8000-000000000000"

pytestmark = [
    pytest.mark.req("JF-14", "JF-16"),
    pytest.mark.parametrize("url", ["sqlite"], indirect=True),
]


def operations(app: App) -> list[tuple[str, str, str, Scope | None]]:
    service = make_service(app, authenticate=lambda _: None)
    return [
        (method, route.path_format, route.name, scope_of(route))
        for route in every_route(service)
        for method in sorted(route.methods)
    ]


@pytest.mark.slow
def test_each_route_requires_the_expected_scope(app: App) -> None:
    found = operations(app)
    paths = make_service(app, authenticate=lambda _: None).openapi()["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert {(method, path) for method, path, _, _ in found} >= documented
    assert {name for _, _, name, scope in found if scope is None} == PUBLIC
    assert len({name for _, _, name, _ in found}) == len(documented)
    for method, path, name, scope in found:
        wanted: Scope | None = Scope.READ if method == "GET" else Scope.OPERATE
        for names, granted in (
            *((ENQUEUES, Scope.ENQUEUE), (DECIDES, Scope.DECIDE), (ADMINISTERS, Scope.ADMIN), (WORKS, Scope.WORK)),
            (PUBLIC, None),
        ):
            wanted = granted if name in names else wanted
        assert scope is wanted, (method, path, name, scope, wanted)


async def test_role_has_access_exactly_where_its_scopes_allow(app: App) -> None:
    found = operations(app)
    session_of(app).make_ready()
    who = [Identity("nobody", "default", frozenset())]
    transport = httpx2.ASGITransport(make_service(app, authenticate=lambda _: who[0]), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HERE) as http:
        for role, (method, path, name, scope) in itertools.product(Role, found):
            who[0] = Identity("user", "default", scopes_of([role]))
            may = scope is None or scope in ROLES[role]
            if may and name in ENDLESS:
                continue
            answer = await http.request(method, filled(path), json=None if method in ("GET", "DELETE") else {})
            refused = answer.status_code == 403 and answer.json()["code"] == "missing_scope"
            assert refused is not may, (method, path, role, answer.status_code, answer.text[:200])
            assert answer.status_code < 500, (method, path, answer.text[:200])


def filled(path: str) -> str:
    for name in ("job_id", "operation_id", "approval_id", "workflow_id", "reservation_id"):
        path = path.replace(f"{{{name}}}", SOME_ID)
    while "{" in path:
        head, _, rest = path.partition("{")
        path = f"{head}x{rest.partition('}')[2]}"
    return path


@pytest.mark.slow
async def test_get_requests_change_nothing(app: App) -> None:
    job = app.enqueue("mail", {}).id
    identity = Identity("user", "default", scopes_of(["admin"]), whole=True)
    service = make_service(app, authenticate=lambda _: identity)

    def database_contents() -> str:
        with session_of(app).store.transaction() as connection:
            tables = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
            rows: dict[str, Any] = {
                table: sorted(map(repr, connection.execute(f'select * from "{table}"'))) for table in tables
            }
        return json.dumps(rows)

    before = database_contents()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        for method, path, name, _ in operations(app):
            if method == "GET" and name not in ENDLESS:
                answer = await http.get(filled(path).replace(SOME_ID, job))
                assert answer.status_code < 500, (path, answer.text)
    assert database_contents() == before


def as_admin_of(tenant: str) -> Authenticate:
    identity = Identity("user", tenant, scopes_of(["admin"]))
    return lambda _: identity


@pytest.mark.slow
@pytest.mark.req("JF-1")
async def test_global_settings_need_every_tenant_and_tenant_settings_need_one(app: App) -> None:
    session_of(app).make_ready()
    for tenant, path, code in (
        ("acme", "/api/v1/tenants/umbrella", "not_for_a_tenant"),
        ("acme", "/api/v1/executors/x", "not_for_a_tenant"),
        ("*", "/api/v1/templates/x", "tenant_required"),
    ):
        service = make_service(app, authenticate=as_admin_of(tenant))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
            answer = await http.put(path, json={"kind": "x"} if code == "tenant_required" else {})
            assert answer.json()["code"] == code
            if tenant == "acme":
                pause = {"queue": "mail", "reason": "x"}
                for path in ("/api/v1/pauses", "/api/v1/pauses?tenant=*"):
                    assert (await http.put(path, json=pause)).json()["tenant"] == "acme"
                nothing = await http.put("/api/v1/pauses", json={"reason": "x"})
                assert nothing.json()["code"] == "nothing_named"
                assert (await http.get("/api/v1/tenants/umbrella")).status_code == 404
                assert (await http.get("/api/v1/audit/anchor")).status_code == 403
            else:
                refused = await http.post("/api/v1/jobs", json={"kind": "x"})
                assert (refused.status_code, refused.json()["code"]) == (422, "tenant_required")
