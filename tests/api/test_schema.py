"""The API conforms to its OpenAPI document, for requests that it allows and for others.

Schemathesis makes the requests; a real server answers them. Each response has a status, a type and a body that the
document names, and none is a 500.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.sessions import tokens_of
from tests.api.serving import serving

pytestmark = pytest.mark.req("JF-14", "DP-3")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 2
ENDLESS = {"/api/v1/events/stream"}

Case = schemathesis.Case[Any]


@contextmanager
def served(app: App) -> Iterator[str]:
    """In another thread, since the requests are made in this one."""
    addresses: list[str] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(app, tokens_of(app)) as address:
            addresses.append(address)
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert up.wait(30)
        yield addresses[0]
    finally:
        over.set()
        thread.join(30)


def furnished(app: App) -> dict[str, str]:
    """Create one of each object; return their ids by the names of path parameters."""
    job = app.enqueue("mail", {"to": "ada"}, agent="planner").id
    issued = app.tokens.issue("eyes", roles=["viewer"])
    app.schedules.add("hourly", "@hourly", kind="mail")
    app.templates.set("monthly", "mail", {})
    flow = app.workflow("publish")
    flow.add("mail", {})
    workflow = flow.start().id
    lease = session_of(app).run(session_of(app).store.leases.open("w", 3600, "default")).id
    return {"job_id": job, "id": issued.token.id, "lease": lease, "workflow_id": workflow, "name": "hourly"}


def bounded(case: Case) -> Case:
    """Set the waits of requests to zero."""
    for part in (case.body, case.query):
        if isinstance(part, dict) and "wait" in part and isinstance(part["wait"], (int, float)):
            part["wait"] = 0
    return case


@pytest.mark.slow
def test_every_operation_conforms_to_openapi_document(sqlite_url: str) -> None:
    with closing(App(sqlite_url, name="tests", enqueued_by="tester")) as app:
        session_of(app).make_ready()
        token = app.tokens.issue("admin", roles=["admin"]).text
        known = furnished(app)
        with served(app) as address, requests.Session() as session:
            session.headers["Authorization"] = f"Bearer {token}"
            document = session.get(f"{address}/api/v1/openapi.json").json()
            schema = schemathesis.openapi.from_dict(document)
            requested: set[str] = set()
            wrong: list[str] = []

            def ask(case: Case, real: bool) -> None:
                if real:
                    case.path_parameters |= {name: known[name] for name in case.path_parameters if name in known}
                requested.add(case.operation.label)
                try:
                    case.call_and_validate(base_url=address, session=session, checks=CHECKS, timeout=20)
                except (schemathesis.core.failures.FailureGroup, requests.RequestException) as failed:
                    wrong.append(f"{case.operation.label}: {failed!r} {getattr(failed, 'exceptions', '')}")

            for result in schema.get_all_operations():
                operation: Any = result.ok()  # type: ignore[union-attr]
                if operation.path not in ENDLESS:
                    for mode in GenerationMode:
                        exercise(operation, mode, ask)
            assert wrong == []
            assert len(requested) > 100


def exercise(operation: Any, mode: GenerationMode, ask: Callable[[Case, bool], None]) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def examples(case: Case, real: bool) -> None:
        ask(bounded(case), real)

    with suppress(Unsatisfiable):  # an operation without parameters has no invalid request
        examples()


def test_schema_names_contain_no_module_names() -> None:
    """FastAPI puts the module into the name where two classes have the same one."""
    with closing(App("sqlite:///:memory:")) as app:
        document = make_service(app, authenticate=lambda _: None).openapi()
    assert [name for name in document["components"]["schemas"] if "__" in name] == []


@pytest.mark.slow
def test_every_body_has_an_example_that_fits_its_schema(sqlite_url: str) -> None:
    """Readers copy examples from the document."""
    with closing(App(sqlite_url)) as app:
        document = make_service(app, authenticate=lambda _: None).openapi()
    schemas: dict[str, Any] = document["components"]["schemas"]
    wrong = [
        (name, error.message)
        for name, schema in schemas.items()
        for part in (schema, *schema.get("properties", {}).values())
        for example in part.get("examples", ())
        for error in Draft202012Validator(part | {"components": document["components"]}).iter_errors(example)
    ]
    assert wrong == []
    bodies = {
        name
        for methods in document["paths"].values()
        for operation in methods.values()
        for name in re.findall(r"schemas/(\w+)", json.dumps(operation.get("requestBody", {})))
    }
    assert len(bodies) > 40
    assert [name for name in sorted(bodies) if '"examples"' not in json.dumps(schemas[name])] == []
