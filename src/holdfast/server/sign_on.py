"""Single sign-on for the dashboard with OpenID Connect: the authorization code flow with PKCE.

The provider's keys, tokens and claims are checked with Authlib and joserfc; requests to the provider pass the guard of
outgoing HTTP. A login issues an API token that nobody sees, with the roles of the user's groups and the length of the
session, and opens a session of it: the session is checked, listed, revoked and recorded like any other, and the browser
has no token of the provider.

``state``, ``nonce`` and the PKCE verifier are in a signed cookie for the ten minutes of a login, so that only the
browser that began a login can complete it, at any process of the service that knows the client secret.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import html
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.tokens.model import Issuing, new_token, token_tenant
from holdfast.features.webhooks.model import check_url
from holdfast.outgoing import EgressPolicy, Outgoing, send
from holdfast.server.pages import redirect
from holdfast.server.proxies import Roles
from holdfast.server.rendering import render
from holdfast.server.sessions import redirect_target, sessions_of, set_session
from holdfast.stores.requests import new_id

if TYPE_CHECKING:
    from holdfast.server.sessions import Tokens

SIGN_IN: Final = "holdfast_sign_in"
SIGNED_ON: Final = "holdfast_signed_on"
"""Marks a browser whose session the provider opened, so that logging out logs out there, too."""
LOGIN_SECONDS: Final = 600
KEYS_SECONDS: Final = 600.0
LEEWAY: Final = 60
MAX_SESSION: Final = 7 * 86_400.0
ALGORITHMS: Final = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
]
"""Signatures with a public key only: not ``none``, and no secret that a client knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """Settings of OpenID Connect. ``url`` is the public URL of the service; the provider has to know
    ``url/login/callback``, and for logging out ``url/login``."""

    issuer: str
    client_id: str
    url: str
    roles: Roles
    client_secret: str | None = field(default=None, repr=False)
    scopes: str = "openid profile email"
    groups_claim: str = "groups"
    name_claim: str = "email"
    tenant: str = "default"
    """The tenant of the sessions; ``*`` for operators of all, or ``claim:NAME``."""
    session: Duration = "8h"

    def __post_init__(self) -> None:
        for name in ("issuer", "url"):
            object.__setattr__(self, name, check_url(getattr(self, name)).rstrip("/"))
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise _invalid("the issuer must be an https URL")
        if not self.client_id or "openid" not in self.scopes.split():
            raise _invalid("single sign-on needs a client id and the scope openid")
        if not self.tenant.startswith("claim:"):
            token_tenant(self.tenant)
        if not 60 <= seconds(self.session, "session") <= MAX_SESSION:
            raise _invalid("a session must last from a minute to seven days")


class Provider:
    """The OpenID provider of ``settings``: its endpoints and keys, and the login of a person."""

    def __init__(self, settings: SignOn, policy: EgressPolicy) -> None:
        try:
            import authlib.oidc.core  # noqa: F401
            import joserfc.jwt  # noqa: F401
        except ModuleNotFoundError as missing:
            raise InvalidSetting(
                "single sign-on needs an extra that is not installed",
                code="missing_extra",
                fix="pip install 'holdfast[sso]'",
            ) from missing
        self.settings, self._policy = settings, policy
        secret = settings.client_secret
        self._key = (
            secrets.token_bytes(32) if secret is None else hashlib.sha256(b"sign-in " + secret.encode()).digest()
        )
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}
        self._reading = asyncio.Lock()

    async def begin(self, target: str) -> tuple[str, str]:
        """The URL of the provider's login, and the cookie that completes it here."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        metadata = await self._metadata()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._callback,
            "scope": self.settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        login = {"state": state, "nonce": nonce, "verifier": verifier, "next": target}
        return _with_query(self._endpoint(metadata, "authorization_endpoint"), query), self._sealed(login)

    async def complete(self, cookie: str | None, given: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """The claims of the person who has logged in, and the page to return to. Raises ``Refused``."""
        login = self._opened(cookie)
        if login is None or not hmac.compare_digest(login["state"].encode(), given.get("state", "").encode()):
            raise _refused("this login was not begun here, or took longer than ten minutes")
        if "error" in given:
            raise _refused(f"the provider refused the login: {given['error'][:100]}")
        if given.get("iss", self.settings.issuer).rstrip("/") != self.settings.issuer:
            raise _refused("the answer is from another provider")
        tokens = await self._tokens(given.get("code", ""), login["verifier"])
        claims = await self._claims(tokens, login["nonce"])
        return await self._with_groups(claims, tokens), login["next"]

    def identified(self, claims: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str]:
        """The name, roles and tenant of a person. Raises ``Refused`` without a role."""
        settings = self.settings
        name = claims.get(settings.name_claim)
        if settings.name_claim == "email" and claims.get("email_verified") is False:
            raise _refused("the provider has not verified this e-mail address")
        if not isinstance(name, str):
            raise _refused(f"the provider says no {settings.name_claim} of this person")
        roles = settings.roles.for_groups(_texts(_claim(claims, settings.groups_claim)))
        if not roles:
            raise Refused(f"{check_name(name, 'name')} is in no group that has a role here", code="no_role")
        tenant: Any = settings.tenant
        if settings.tenant.startswith("claim:"):
            tenant = _claim(claims, settings.tenant.removeprefix("claim:"))
            if not isinstance(tenant, str) or tenant == EVERY_TENANT:  # only the settings make operators of all tenants
                raise Refused("the provider names no tenant for this person", code="no_role")
        return check_name(name, "name"), roles, token_tenant(tenant)

    async def logout_url(self) -> str | None:
        """Where the provider ends its own session; None if it cannot."""
        try:
            ending = (await self._metadata()).get("end_session_endpoint")
        except HoldfastError:
            return None
        if not isinstance(ending, str):
            return None
        query = {"client_id": self.settings.client_id, "post_logout_redirect_uri": f"{self.settings.url}/login"}
        return _with_query(ending, query)

    @property
    def _callback(self) -> str:
        return f"{self.settings.url}/login/callback"

    # --- the provider ---

    async def _metadata(self) -> dict[str, Any]:
        metadata = await self._read(f"{self.settings.issuer}/.well-known/openid-configuration")
        if str(metadata.get("issuer")).rstrip("/") != self.settings.issuer:
            raise _refused("the provider calls itself by another name than its issuer")
        return metadata

    def _endpoint(self, metadata: Mapping[str, Any], name: str) -> str:
        """A URL of the provider. Of one with https, all are: codes, tokens and keys travel there."""
        url = metadata.get(name)
        if not isinstance(url, str) or urlsplit(url).scheme not in ("https", urlsplit(self.settings.issuer).scheme):
            raise _refused(f"the provider has no {name} with https")
        return url

    async def _read(self, url: str, fresh: bool = False) -> dict[str, Any]:
        """A document of the provider, from the last ten minutes."""
        async with self._reading:
            known = self._known.get(url)
            if known is None or fresh or known[0] <= time.monotonic():
                known = self._known[url] = (time.monotonic() + KEYS_SECONDS, await self._json("GET", url))
            return known[1]

    async def _json(self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Any:
        response = await send(
            Outgoing(method, url, {**(headers or {}), "Accept": "application/json"}, body), self._policy
        )
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        if response.status != 200 or not isinstance(document, dict):
            raise _refused(f"the provider answered {response.status}")
        return document

    async def _tokens(self, code: str, verifier: str) -> dict[str, Any]:
        settings = self.settings
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._callback}
        form |= {"client_id": settings.client_id, "code_verifier": verifier}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        metadata = await self._metadata()
        if settings.client_secret is not None:
            methods = _texts(metadata.get("token_endpoint_auth_methods_supported")) or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                pair = f"{quote(settings.client_id, '')}:{quote(settings.client_secret, '')}"
                headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
            else:
                form["client_secret"] = settings.client_secret
        tokens: dict[str, Any] = await self._json(
            "POST", self._endpoint(metadata, "token_endpoint"), headers, urlencode(form).encode()
        )
        return tokens

    async def _claims(self, tokens: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, after its signature, issuer, audience, times and nonce were checked."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet

        text, url = str(tokens.get("id_token")), self._endpoint(await self._metadata(), "jwks_uri")
        try:
            try:
                token = jwt.decode(text, KeySet.import_key_set(await self._read(url)), algorithms=ALGORITHMS)  # type: ignore[arg-type]
            except InvalidKeyIdError:  # the provider has changed its keys
                keys: Any = await self._read(url, fresh=True)
                token = jwt.decode(text, KeySet.import_key_set(keys), algorithms=ALGORITHMS)
            options: Any = {
                "iss": {"essential": True, "values": [self.settings.issuer, f"{self.settings.issuer}/"]},
                "aud": {"essential": True, "value": self.settings.client_id},
                "sub": {"essential": True},
                "exp": {"essential": True},
            }
            params = {"nonce": nonce, "client_id": self.settings.client_id, "access_token": tokens.get("access_token")}
            claims = CodeIDToken(token.claims, token.header, options, params)
            claims.validate(leeway=LEEWAY)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise _refused(f"the ID token is not valid: {type(error).__name__}") from None
        return dict(claims)

    async def _with_groups(self, claims: dict[str, Any], tokens: Mapping[str, Any]) -> dict[str, Any]:
        """The claims, with those of the user information if the groups are only there."""
        metadata = await self._metadata()
        if _claim(claims, self.settings.groups_claim) is not None or "userinfo_endpoint" not in metadata:
            return claims
        endpoint = self._endpoint(metadata, "userinfo_endpoint")
        headers = {"Authorization": f"Bearer {tokens.get('access_token')}"}
        more: dict[str, Any] = await self._json("GET", endpoint, headers)
        if more.get("sub") != claims["sub"]:
            raise _refused("the user information is about another person")
        return more | claims

    # --- the cookie of a login ---

    def _sealed(self, login: Mapping[str, str]) -> str:
        body = json.dumps({**login, "until": time.time() + LOGIN_SECONDS}).encode()
        signature = hmac.new(self._key, body, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(signature + body).decode()

    def _opened(self, cookie: str | None) -> dict[str, str] | None:
        try:
            data = base64.urlsafe_b64decode((cookie or "")[:4_000].encode())
        except ValueError:
            return None
        if not hmac.compare_digest(hmac.new(self._key, data[32:], hashlib.sha256).digest(), data[:32]):
            return None
        login: dict[str, Any] = json.loads(data[32:])
        return login if login["until"] > time.time() else None


# --- pages ---


def provider_of(request: Request) -> Provider:
    provider = getattr(request.app.state, "provider", None)
    if not isinstance(provider, Provider):
        raise NotFound("this service has no single sign-on", code="no_login")
    return provider


async def sign_in(request: Request) -> Response:
    """Send the browser to the provider."""
    provider = provider_of(request)
    url, cookie = await provider.begin(redirect_target(request.query_params.get("next")))
    response = RedirectResponse(url, status_code=303)
    # Not Strict: the browser has to send it when it comes back from the provider.
    response.set_cookie(SIGN_IN, cookie, LOGIN_SECONDS, httponly=True, samesite="lax", **_scope(request))
    return response


async def callback(request: Request) -> Response:
    """Complete a login: open a session with the rights of the person's groups."""
    provider, sessions = provider_of(request), sessions_of(request)
    try:
        claims, target = await provider.complete(request.cookies.get(SIGN_IN), request.query_params)
        session = await _open(sessions, provider, claims)
    except HoldfastError as error:
        response: Response = await render(
            request, "login.html", status=403, wrong=f"{error.message}.", next="/", signs_on=True
        )
        response.delete_cookie(SIGN_IN, **_scope(request))
        return response
    response = _onward((request.scope.get("root_path", "") or "") + target)
    set_session(request, response, session, int(seconds(provider.settings.session, "session")))
    response.set_cookie(SIGNED_ON, "1", httponly=True, samesite="strict", **_scope(request))
    response.delete_cookie(SIGN_IN, **_scope(request))
    return response


async def _open(sessions: Tokens, provider: Provider, claims: Mapping[str, Any]) -> str:
    name, roles, tenant = provider.identified(claims)
    text = new_token()
    new = Issuing.of(new_id(), text, name, roles, (), provider.settings.session)
    await sessions.issue(new, f"sign-on {provider.settings.issuer}", tenant)
    session = await sessions.open(text)
    if session is None:
        raise _refused("the session could not be opened")
    return session


async def leave(request: Request) -> Response | None:
    """After the session has ended: the way to the provider's logout, if it opened the session."""
    provider = getattr(request.app.state, "provider", None)
    if not isinstance(provider, Provider) or SIGNED_ON not in request.cookies:
        return None
    url = await provider.logout_url()
    response = redirect(request, "/login") if url is None else _onward(url)
    response.delete_cookie(SIGNED_ON, **_scope(request))
    return response


def _onward(url: str) -> Response:
    """A page that leads on at once. A redirect would not do: after one from another site browsers do not send the
    session's cookie (SameSite=Strict), and the policy of our pages allows none that follows a form."""
    to = html.escape(url, quote=True)
    refresh = f'<meta http-equiv="refresh" content="0;url={to}">'
    text = f'<!doctype html>{refresh}<title>Holdfast</title><a href="{to}">Continue</a>'
    return HTMLResponse(text, headers={"Referrer-Policy": "no-referrer"})


def _scope(request: Request) -> dict[str, Any]:
    return {"path": request.scope.get("root_path", "") or "/", "secure": request.url.scheme == "https"}


routes = [
    Route("/login/sso", sign_in, methods=["GET"]),
    Route("/login/callback", callback, methods=["GET"]),
]


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim, or one inside others: ``realm_access.roles``. A claim may also have periods in its name."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _texts(value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [each for each in values if isinstance(each, str)][:1_000]


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}"


def _refused(why: str) -> Refused:
    return Refused(why, code="sign_on_failed")


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_sign_on")
