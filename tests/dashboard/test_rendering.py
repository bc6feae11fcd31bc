"""Rendering of pages: in pieces, so that other requests continue, and complete or not at all."""

from __future__ import annotations

import asyncio

import pytest
from jinja2 import TemplateSyntaxError, nodes
from starlette.requests import Request

from holdfast import App
from holdfast.engine.job import Job
from holdfast.features.jobs import pages as jobs
from holdfast.features.jobs.pages import ListRequest
from holdfast.features.jobs.search import SearchPage
from holdfast.features.tokens.model import scopes_of
from holdfast.server import rendering
from holdfast.server.api import every_route
from holdfast.server.app import API, DashboardMount, make_service
from holdfast.server.auth import Identity, at_this_machine
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("JF-16")


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Rendering does not depend on the store."""
    return sqlite_url


def enqueue(app: App, many: int) -> list[Job]:
    for n in range(many):
        app.enqueue("mail.send", {"n": n})
    return app.jobs.list(limit=many)


async def test_rendering_a_long_page_yields_to_other_requests(app: App) -> None:
    """Counts iterations of the event loop: during rendering there are only those that the renderer yields."""
    listed = await asyncio.to_thread(enqueue, app, 50)
    renderer = rendering.Renderer(app)
    state = {"identity": Identity("ada", "default", scopes_of(["viewer"]))}
    request = Request({"type": "http", "path": "/jobs", "query_string": b"", "headers": [], "state": state})

    async def iterations(shown: list[Job]) -> int:
        counted, over = 0, False

        async def count() -> None:
            nonlocal counted
            while not over:
                counted += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        answer = await renderer.page(
            request,
            "jobs.html",
            finding=ListRequest.of(request.query_params, shown[0].created_at),
            found=SearchPage(shown, {}, None),
            counted=None,
            tabs=jobs.TABS,
            error=None,
            reasons={job.id: "" for job in shown},
        )
        over = True
        await counter
        assert bytes(answer.body).count(b"mail.send") == len(shown)
        return counted

    assert await iterations(listed[:1]) == 0, "a short page is rendered at once"
    assert await iterations(listed) >= 2, "a long page yields"


async def test_error_in_last_row_gives_a_complete_error_page(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("cannot be rendered")

    listed = await asyncio.to_thread(enqueue, app, 50)
    monkeypatch.setattr(jobs, "reason_of", lambda job, note: Broken() if job.id == listed[-1].id else "")
    async with client_of(app) as http:
        answer = await http.get("/jobs")
        assert answer.status_code == 500
        assert "internal_error" in answer.text
        assert "mail.send" not in answer.text, "a part of the list was sent"
        assert answer.text.rstrip().endswith("</html>")
        assert answer.text.count("<html") == 1


def test_every_filter_used_in_templates_exists(app: App) -> None:
    pages = rendering.Renderer(app).pages
    used = {
        (name, node.name)
        for name in pages.list_templates(extensions=["html"])
        for node in pages.parse(pages.loader.get_source(pages, name)[0]).find_all(nodes.Filter)  # type: ignore[union-attr]
    }
    assert len(used) > 50
    assert {use for use in used if use[1] not in pages.filters} == set()


def test_around_tag_renders_like_call_tag(app: App) -> None:
    pages = rendering.Renderer(app).pages
    text = (
        '{% import "parts.html" as ui %}{% WORD ui.panel("<b>", id="x") %}'
        '{% WORD ui.table("a", ["b"]) %}{% for n in range(3) %}<tr><td>{{ n }}</td></tr>{% endfor %}{% endWORD %}'
        "{% endWORD %}"
    )
    around, called = (pages.from_string(text.replace("WORD", word)) for word in ("around", "call"))
    assert around.render() == called.render()
    assert "&lt;b&gt;" in around.render()
    assert len(list(around.generate())) > len(list(called.generate()))
    with pytest.raises(TemplateSyntaxError, match="around needs a call"):
        pages.from_string("{% around 7 %}{% endaround %}")


async def test_title_of_a_refused_request_says_why(app: App) -> None:
    async with client_of(app) as http:
        answers = [await http.get("/nothing"), await http.request("DELETE", "/jobs")]
    shown = [(answer.status_code, answer.text.partition("<title>")[2].partition("<")[0]) for answer in answers]
    assert shown == [(404, "Page not found · Holdfast"), (405, "Method not allowed · Holdfast")]
    assert "method_not_allowed" in answers[1].text


@pytest.mark.slow
async def test_dashboard_routes_come_first_and_leave_api_paths_alone(app: App) -> None:
    service = make_service(app, authenticate=at_this_machine(app))
    assert isinstance(service.routes[0], DashboardMount)
    assert {route.path for route in every_route(service) if route.path not in API} == set()
    async with client_of(app) as http:
        answers = {path: await http.get(path) for path in ("/api/v1/nothing", "/livez", "/livez/x", "/apis", "/")}
    kinds = [answer.headers["content-type"].partition(";")[0] for answer in answers.values()]
    assert kinds == ["application/problem+json", "text/plain", *["text/html"] * 3]
    assert "<title>Page not found · Holdfast</title>" in answers["/apis"].text
