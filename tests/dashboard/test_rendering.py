"""How a page is written (JF-16): piece by piece, so that others have their turn, and whole or not at all."""

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
from holdfast.server.app import API, make_service
from holdfast.server.auth import Identity, at_this_machine
from holdfast.server.dashboard import DashboardMount
from holdfast.server.openapi import every_route
from tests.api.conftest import client_of

pytestmark = pytest.mark.req("JF-16")


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Pages are written the same for every store."""
    return sqlite_url


def enqueue(app: App, many: int) -> list[Job]:
    for n in range(many):
        app.enqueue("mail.send", {"n": n})
    return app.jobs.list(limit=many)


async def test_others_have_their_turn_while_a_long_page_is_written(app: App) -> None:
    """Counted in turns of the loop: while a page is written there are none but those that it gives away."""
    listed = await asyncio.to_thread(enqueue, app, 50)
    renderer = rendering.Renderer(app)
    state = {"identity": Identity("ada", "default", scopes_of(["viewer"]))}
    request = Request({"type": "http", "path": "/jobs", "query_string": b"", "headers": [], "state": state})

    async def turns(shown: list[Job]) -> int:
        taken, over = 0, False

        async def count() -> None:
            nonlocal taken
            while not over:
                taken += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(count())
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
        await beside
        assert bytes(answer.body).count(b"mail.send") == len(shown)
        return taken

    assert await turns(listed[:1]) == 0, "a short page is written in one go"
    assert await turns(listed) >= 2, "so is a long one"


async def test_what_fails_in_the_last_row_is_a_whole_page_of_an_error(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("it cannot be shown")

    listed = await asyncio.to_thread(enqueue, app, 50)
    monkeypatch.setattr(jobs, "reason_of", lambda job, note: Broken() if job.id == listed[-1].id else "")
    async with client_of(app) as http:
        answer = await http.get("/jobs")
        assert answer.status_code == 500
        assert "internal_error" in answer.text
        assert "mail.send" not in answer.text, "a part of the list was sent"
        assert answer.text.rstrip().endswith("</html>")
        assert answer.text.count("<html") == 1


def test_every_filter_of_the_templates_exists(app: App) -> None:
    pages = rendering.Renderer(app).pages
    used = {
        (name, node.name)
        for name in pages.list_templates()
        for node in pages.parse(pages.loader.get_source(pages, name)[0]).find_all(nodes.Filter)  # type: ignore[union-attr]
    }
    assert len(used) > 50
    assert {each for each in used if each[1] not in pages.filters} == set()


def test_around_a_part_stands_what_a_call_would_put_there(app: App) -> None:
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


@pytest.mark.slow
async def test_pages_are_looked_for_first_and_none_of_the_api_is_taken_for_one(app: App) -> None:
    service = make_service(app, authenticate=at_this_machine(app))
    assert isinstance(service.routes[0], DashboardMount)
    assert {route.path for route in every_route(service) if route.path not in API} == set()
    async with client_of(app) as http:
        answers = {path: await http.get(path) for path in ("/api/v1/nothing", "/livez", "/livez/x", "/apis", "/")}
    kinds = [answer.headers["content-type"].partition(";")[0] for answer in answers.values()]
    assert kinds == ["application/problem+json", "text/plain", *["text/html"] * 3]
    assert "<title>Page not found · Holdfast</title>" in answers["/apis"].text
