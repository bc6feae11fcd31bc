"""Redirects chosen by a request stay on this service."""

from __future__ import annotations

import re
from urllib.parse import quote, urljoin, urlsplit

import httpx2
import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.server.app import make_service
from holdfast.server.pages import local_path
from holdfast.server.sessions import redirect_target, tokens_of
from tests.api.conftest import HERE, client_of

pytestmark = [pytest.mark.req("JF-14", "JF-16")]

FOREIGN = [
    *("//evil.com", "///evil.com", "////evil.com", "//evil.com/..", "//evil.com@127.0.0.1", "//127.0.0.1@evil.com"),
    *("/\\evil.com", "\\\\evil.com", "\\/evil.com", "/\\/evil.com", "\\evil.com", "//\\evil.com", "/\\\\evil.com"),
    *("/%2fevil.com", "/%2Fevil.com", "/%5cevil.com", "%2f%2fevil.com", "/%2f%2fevil.com", "/%5C%5Cevil.com"),
    *("/\t/evil.com", "/\n/evil.com", "/\r\n/evil.com", "\t//evil.com", "/%09/evil.com", "/%0a/evil.com", "/%0d%0a//x"),
    *("http://evil.com", "https:evil.com", "http:/evil.com", "HTTP://evil.com", "javascript:x", "data:text/html,x"),
    *("@evil.com", "evil.com", ".evil.com", "?//evil.com", "#//evil.com", "", " //evil.com", "\x00//evil.com"),
    *("/\u2028/evil.com", "/\u00a0/evil.com", "\uff0f\uff0fevil.com", "/\u200b/evil.com", "/\x0b/evil.com", "/\x7f/x"),
    "/" + "a" * 3_000,
]
LOCAL = ["/", "/jobs", "/jobs?state=queued&q=a%20b", "/schedules/a%2Fb", "/jobs/x#y", "/@evil.com", "/.//x", "/\uff0fx"]


def lands(location: str) -> str:
    """The host that a browser would open: it drops tabs and line ends and treats a backslash as a slash."""
    seen = re.sub(r"[\t\r\n]", "", location.strip(" \x00")).replace("\\", "/")
    seen = re.sub(r"^/{2,}", "//", seen)
    return urlsplit(urljoin(f"{HERE}/login", seen)).netloc


@pytest.mark.parametrize("path", FOREIGN)
def test_foreign_target_is_replaced(path: str) -> None:
    assert (local_path(path), redirect_target(path), local_path(path, "/jobs")) == ("/", "/", "/jobs")


@pytest.mark.parametrize("path", LOCAL)
def test_local_target_is_kept(path: str) -> None:
    assert (local_path(path), redirect_target(path), lands(path)) == (path, path, "127.0.0.1:8000")


def test_login_is_never_the_target_of_a_login() -> None:
    assert [redirect_target(path) for path in ("/login", "/login?next=/login", "/logout")] == ["/", "/", "/"]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_every_redirect_chosen_by_a_request_stays_local(app: App) -> None:
    session_of(app).make_ready()
    token = app.tokens.issue("ada", roles=["admin"]).text
    service = make_service(app, authenticate=tokens_of(app))
    seen = 0
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as anybody,
        client_of(app) as here,
    ):
        anybody.headers["origin"] = here.headers["origin"] = HERE
        for path in FOREIGN:
            answers = [
                await anybody.post("/login", data={"token": token, "next": path}),
                await here.post("/theme", data={"theme": "dark", "back": path}),
                await here.post("/jobs/act", data={"action": "cancel", "state": path, "q": ""}),
                await here.post("/pause", data={"what": "queue", "name": "x", "reason": "x", "from": path}),
                # An unknown path becomes the target after the login.
                await anybody.get(
                    HERE + "/" + quote(path, safe="/%\\@:"), headers={"accept": "text/html", "cookie": ""}
                ),
            ]
            anybody.cookies.clear()
            for answer in answers:
                if "location" in answer.headers:
                    assert lands(answer.headers["location"]) == "127.0.0.1:8000", (path, answer.headers["location"])
                    seen += 1
            page = await anybody.get("/login", params={"next": path})
            (offered,) = re.findall(r'name="next" value="([^"]*)"', page.text)
            assert offered == "/", path
    assert seen > 3 * len(FOREIGN)
