"""Single sign-on (HF-20) with a real provider on loopback, and the headers of a reverse proxy."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from holdfast import App
from holdfast import config as settings_of
from holdfast.app.internals import session_of
from holdfast.cli.proxy import check_trusted, proxy_login
from holdfast.cli.serve import make_web, web_server
from holdfast.errors import InvalidSetting, Refused
from holdfast.outgoing import EgressPolicy
from holdfast.server.app import close_background, make_service
from holdfast.server.proxies import Roles
from holdfast.server.sessions import COOKIE, tokens_of
from holdfast.server.sign_on import SIGN_IN, Provider, SignOn
from tests.api.conftest import HERE
from tests.app.conftest import NewApp
from tests.support.openid import CLIENT, CLIENT_SECRET, OpenIdProvider, openid_provider
from tests.support.stores import forward

pytestmark = pytest.mark.req("HF-20")

PAGE = {"accept": "text/html"}
FROM_HERE = PAGE | {"origin": HERE}


@pytest.fixture(scope="module")
def running_provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as provider:
        yield provider


@pytest.fixture
def provider(running_provider: OpenIdProvider) -> OpenIdProvider:
    fresh = OpenIdProvider()
    for name in ("person", "only_at_userinfo", "flaw", "asked"):
        setattr(running_provider, name, getattr(fresh, name))
    return running_provider


@pytest.fixture
def app(new_app: NewApp, provider: OpenIdProvider) -> App:
    port = urlsplit(provider.issuer).port or 0
    made = new_app(egress=EgressPolicy(ports=(port,), allow=("127.0.0.0/8",)))
    session_of(made).make_ready()
    return made


@asynccontextmanager
async def browser(app: App, provider: OpenIdProvider, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    given: dict[str, Any] = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "client_secret": CLIENT_SECRET,
        "url": HERE,
        "roles": Roles.of("ops=operator+approver,admins=admin"),
    }
    service = make_service(app, authenticate=tokens_of(app, remember=0), sign_on=SignOn(**(given | settings)))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as http:
        yield http
    await service.state.live.aclose()
    await close_background(service)


async def begin(http: httpx2.AsyncClient, target: str = "/jobs") -> str:
    """Begin a login and log in at the provider; return the path of the answer."""
    begun = await http.get("/login/sso", params={"next": target})
    assert begun.status_code == 303, begun.text
    async with httpx2.AsyncClient() as outside:
        answer = await outside.get(begun.headers["location"])
    parts = urlsplit(answer.headers["location"])
    return f"{parts.path}?{parts.query}"


def leads_to(page: httpx2.Response) -> str:
    match = re.search(r'content="0;url=([^"]+)"', page.text)
    assert match is not None, page.text
    return unescape(match[1])


async def test_person_logs_in_works_with_the_roles_of_the_groups_and_logs_out(
    app: App, provider: OpenIdProvider
) -> None:
    async with browser(app, provider) as http:
        turned_away = await http.get("/jobs", headers=PAGE)
        assert turned_away.headers["location"] == "/login?next=/jobs"
        assert "/login/sso?next=%2Fjobs" in (await http.get("/login?next=/jobs", headers=PAGE)).text
        done = await http.get(await begin(http))
        assert (done.status_code, leads_to(done)) == (200, "/jobs")
        cookie = next(each for each in done.headers.get_list("set-cookie") if each.startswith(COOKIE))
        assert all(flag in cookie for flag in ("HttpOnly", "SameSite=strict", "Max-Age=28800"))
        assert SIGN_IN not in http.cookies
        assert "ada@example.com" in (await http.get("/jobs", headers=PAGE)).text
        assert (await http.get("/tokens", headers=PAGE)).status_code == 403, "an operator is no administrator"
        (token,) = await app.tokens.alist()
        assert (token.name, token.roles) == ("ada@example.com", ("operator", "approver"))
        assert token.created_by == f"sign-on {provider.issuer}"
        forged = await http.post("/logout", headers={"origin": "https://evil.example"})
        assert forged.status_code == 403
        out = await http.post("/logout", headers=FROM_HERE)
        ending = urlsplit(leads_to(out))
        assert f"{ending.scheme}://{ending.netloc}" == provider.issuer
        assert parse_qs(ending.query)["post_logout_redirect_uri"] == [f"{HERE}/login"]
        assert (await http.get("/jobs", headers=PAGE)).status_code == 303


async def test_issuer_may_end_with_a_slash(app: App, provider: OpenIdProvider) -> None:
    provider.flaw = "slash"
    async with browser(app, provider, issuer=f"{provider.issuer}/") as http:
        assert (await http.get(await begin(http))).status_code == 200


async def test_session_ends_with_its_time_and_with_its_token(app: App, provider: OpenIdProvider) -> None:
    async with browser(app, provider, session="5m") as http:
        await http.get(await begin(http))
        assert (await http.get("/jobs", headers=PAGE)).status_code == 200
        (token,) = await app.tokens.alist()
        await app.tokens.arevoke(token.id)
        assert (await http.get("/jobs", headers=PAGE)).status_code == 303
        await http.get(await begin(http))
        assert (await http.get("/jobs", headers=PAGE)).status_code == 200
        forward(session_of(app).store, 301)
        assert (await http.get("/jobs", headers=PAGE)).status_code == 303


@pytest.mark.every_case
@pytest.mark.parametrize(
    "flaw",
    [
        *("nonce", "audience", "party", "issuer", "expired", "early", "access token", "denied"),
        *("none", "shared secret", "public key as a secret", "another key", "no token"),
    ],
)
async def test_answer_that_is_not_valid_opens_no_session(app: App, provider: OpenIdProvider, flaw: str) -> None:
    async with browser(app, provider) as http:
        provider.flaw = flaw
        refused = await http.get(await begin(http))
        assert (refused.status_code, COOKIE in http.cookies) == (403, False), refused.text
        assert await app.tokens.alist() == []


async def test_provider_that_calls_itself_otherwise_is_refused(app: App, provider: OpenIdProvider) -> None:
    provider.flaw = "metadata"
    async with browser(app, provider) as http:
        refused = await http.get("/login/sso")
        assert (refused.status_code, "sign_on_failed" in refused.text) == (409, True)


async def test_secrets_are_not_sent_without_encryption() -> None:
    roles, at = Roles.of("*=viewer"), "https://id.example"
    settings = SignOn(issuer=at, client_id=CLIENT, client_secret=CLIENT_SECRET, url=HERE, roles=roles)
    provider = Provider(settings, EgressPolicy())
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "authorization_endpoint": lambda: provider.begin("/"),
        "token_endpoint": lambda: provider._tokens("code", "verifier"),
        "jwks_uri": lambda: provider._claims({}, "nonce"),
    }
    for insecure, call in calls.items():
        document = {name: f"http{'' if name == insecure else 's'}://id.example/{name}" for name in calls}
        provider._known[f"{at}/.well-known/openid-configuration"] = (math.inf, document | {"issuer": at})
        with pytest.raises(Refused, match=insecure):
            await call()


async def test_only_the_browser_that_began_a_login_completes_it_once(app: App, provider: OpenIdProvider) -> None:
    async with browser(app, provider) as http, browser(app, provider) as victim:
        path = await begin(http)
        assert (await victim.get(path)).status_code == 403, "no login was begun in this browser"
        await begin(victim)
        assert (await victim.get(path)).status_code == 403, "another login was begun in this browser"
        sealed = http.cookies[SIGN_IN]
        http.cookies.set(SIGN_IN, sealed[:-4] + "AAAA", domain="127.0.0.1", path="/")
        assert (await http.get(path)).status_code == 403
        http.cookies.clear()
        http.cookies.set(SIGN_IN, sealed, domain="127.0.0.1", path="/")
        assert (await http.get(path)).status_code == 200
        http.cookies.set(SIGN_IN, sealed, domain="127.0.0.1", path="/")
        assert (await http.get(path)).status_code == 403, "the code is used up"


async def test_login_leads_to_no_other_site(app: App, provider: OpenIdProvider) -> None:
    async with browser(app, provider) as http:
        for target in ("//evil.example", "https://evil.example/", "/\\evil.example", '/"><script>'):
            done = await http.get(await begin(http, target))
            assert urlsplit(leads_to(done)).netloc == ""
            assert "<script>" not in done.text
            assert "evil" not in done.text


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("person", "settings"),
    [
        ({"groups": ["strangers"]}, {}),
        ({"groups": []}, {}),
        ({"email_verified": False}, {}),
        ({"email": None}, {}),
        ({}, {"tenant": "claim:org"}),
        ({"org": "*"}, {"tenant": "claim:org"}),
    ],
)
async def test_person_without_a_role_or_name_gets_no_session(
    app: App, provider: OpenIdProvider, person: dict[str, Any], settings: dict[str, Any]
) -> None:
    provider.person |= person
    async with browser(app, provider, **settings) as http:
        assert (await http.get(await begin(http))).status_code == 403
        assert COOKIE not in http.cookies


async def test_groups_may_be_elsewhere_and_keys_and_tenants_change(app: App, provider: OpenIdProvider) -> None:
    provider.person |= {"realm_access": {"roles": ["admins"]}, "org": "acme", "email": "eve@example.com"}
    provider.only_at_userinfo = {"realm_access"}
    async with browser(app, provider, groups_claim="realm_access.roles", tenant="claim:org") as http:
        await http.get(await begin(http))
        with app.tenant("acme"):
            (token,) = await app.tokens.alist()
        assert (token.tenant, token.roles) == ("acme", ("admin",))
        old, provider.key = provider.key, type(provider.key).generate_key(2048, {"kid": "two"})
        try:
            assert (await http.get(await begin(http))).status_code == 200
            assert provider.asked == ["keys", "keys"]
        finally:
            provider.key = old
        provider.flaw = "userinfo"
        assert (await http.get(await begin(http))).status_code == 403


def test_settings_come_from_the_environment_and_wrong_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of.sign_on() == {}
    monkeypatch.setenv("HOLDFAST_OIDC_ISSUER", "https://id.example.com")
    with pytest.raises(InvalidSetting, match="HOLDFAST_OIDC_CLIENT_ID"):
        settings_of.sign_on()
    monkeypatch.setenv("HOLDFAST_OIDC_CLIENT_ID", "jobs")
    monkeypatch.setenv("HOLDFAST_OIDC_ROLES", "*=viewer")
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://jobs.example.com/")
    given = settings_of.sign_on()
    made: Callable[..., SignOn] = lambda **more: SignOn(**{**given, "roles": Roles.of(given["roles"]), **more})  # noqa: E731
    assert (made().url, made().roles.for_groups([])) == ("https://jobs.example.com", ("viewer",))
    wrong: list[dict[str, Any]] = [{"issuer": "http://id.example.com"}, {"scopes": "email"}, {"session": "30d"}]
    for more in (*wrong, {"tenant": ""}, {"url": "javascript:x"}):
        with pytest.raises(InvalidSetting):
            made(**more)
    for text in ("", "ops", "ops=nobody", "=admin"):
        with pytest.raises(InvalidSetting):
            Roles.of(text)


# --- reverse proxies ---

PROXY, CLIENT_ADDRESS = "10.0.0.5", "203.0.113.9"


def asking(app: App, address: str, roles: str = "ops=operator,*=viewer") -> httpx2.AsyncClient:
    """A client at an address, of the service as ``holdfast serve`` runs it."""
    trusted = check_trusted(["10.0.0.0/24"])
    login = proxy_login(trusted, "X-Forwarded-User", "X-Forwarded-Groups", roles, None, local=False)
    server = web_server(make_web(app, local=False, proxy=login), "", trusted)
    transport = httpx2.ASGITransport(server.config.app, client=(address, 1234))
    return httpx2.AsyncClient(transport=transport, base_url=HERE)


async def test_headers_are_believed_from_the_named_proxy_only(app: App) -> None:
    ada = PAGE | {"x-forwarded-user": "ada", "x-forwarded-for": CLIENT_ADDRESS}
    token = (await app.tokens.aissue("ci", roles=["viewer"])).text
    async with asking(app, PROXY) as proxy, asking(app, CLIENT_ADDRESS) as stranger:
        assert "ada" in (await proxy.get("/jobs", headers=ada)).text
        for headers in (ada, ada | {"x-forwarded-for": PROXY}, ada | {"x-forwarded-groups": "ops"}):
            assert (await stranger.get("/jobs", headers=headers)).status_code in (303, 401)
        assert (await proxy.get("/jobs", headers=PAGE)).status_code in (303, 401), "nobody is named"
        twice = [("x-forwarded-user", "ada"), ("x-forwarded-user", "eve")]
        assert (await proxy.get("/api/v1/jobs", headers=twice)).status_code == 401
        ops = {"x-forwarded-user": "ada", "x-forwarded-groups": "x, ops"}
        put = await proxy.post("/api/v1/jobs", json={"kind": "a"}, headers=ops | {"origin": HERE})
        assert put.status_code in (200, 201, 202), put.text
        assert (await app.jobs.alist())[0].enqueued_by == "ada"
        denied = await proxy.post(
            "/api/v1/jobs", json={"kind": "a"}, headers={"x-forwarded-user": "ada", "origin": HERE}
        )
        assert (denied.status_code, denied.json()["code"]) == (403, "missing_scope")
        forged = await proxy.post("/api/v1/jobs", json={"kind": "a"}, headers=ops | {"origin": "https://evil.example"})
        assert (forged.status_code, forged.json()["code"]) == (403, "cross_site")
        unsure = await proxy.post("/api/v1/jobs", json={"kind": "a"}, headers=ops | {"cookie": "theme=dark"})
        assert unsure.json()["code"] == "cross_site", "an old browser that does not say where it comes from"
        bearer = {"authorization": f"Bearer {token}"}
        assert (await stranger.get("/api/v1/jobs", headers=bearer)).status_code == 200, "tokens work besides"


async def test_user_of_a_proxy_needs_a_role_and_no_login_page(app: App) -> None:
    async with asking(app, PROXY, "ops=operator") as proxy:
        assert (await proxy.get("/jobs", headers=PAGE)).status_code == 401, "there is no login to redirect to"
        refused = await proxy.get("/api/v1/jobs", headers={"x-forwarded-user": "ada"})
        assert (refused.status_code, refused.json()["code"]) == (403, "no_role")
        zoe = [(b"x-forwarded-user", "Zoë".encode()), (b"x-forwarded-groups", b"ops"), (b"origin", HERE.encode())]
        assert (await proxy.post("/api/v1/jobs", json={"kind": "a"}, headers=zoe)).status_code in (200, 201, 202)
    assert (await app.jobs.alist())[0].enqueued_by == "Zoë"


def test_headers_without_a_named_proxy_are_refused() -> None:
    for given, code in (
        (([], "X-User", None, "*=viewer", None), "proxy_required"),
        (([PROXY], "X-User", None, None, None), "conflicting_options"),
        (([PROXY], None, "X-Groups", None, None), "conflicting_options"),
    ):
        with pytest.raises(InvalidSetting) as refused:
            proxy_login(*given, local=False)
        assert refused.value.code == code
    with pytest.raises(InvalidSetting):
        proxy_login([PROXY], "X-User", None, "*=viewer", None, local=True)
    for everyone in ("0.0.0.0/0", "*", "::/0"):
        with pytest.raises(InvalidSetting):
            check_trusted([everyone])
