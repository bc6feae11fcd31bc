"""An OpenID provider on loopback, with real tokens of a real key: discovery, authorization code with PKCE, user
information, logout. ``flaw`` makes it answer what a client has to refuse."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.support.http_server import serving

CLIENT, CLIENT_SECRET = "holdfast", "a secret of the client that is long enough"


class OpenIdProvider:
    def __init__(self) -> None:
        self.issuer = ""
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.person: dict[str, Any] = {"sub": "u1", "email": "ada@example.com", "groups": ["ops"]}
        self.only_at_userinfo: set[str] = set()
        self.flaw: str | None = None
        self.redirect_uri = "http://127.0.0.1:8000/login/callback"
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def app(self) -> Starlette:
        routes = [
            Route("/.well-known/openid-configuration", self._metadata),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/jwks", self._jwks),
            Route("/userinfo", self._userinfo),
            Route("/logout", self._logout),
        ]
        return Starlette(routes=routes)

    @property
    def named(self) -> str:
        """What it calls itself; some providers end it with a slash."""
        return f"{self.issuer}/" if self.flaw == "slash" else self.issuer

    async def _metadata(self, request: Request) -> Response:
        at = self.issuer
        named = {"authorization": "authorize", "token": "token", "userinfo": "userinfo", "end_session": "logout"}
        document = {f"{name}_endpoint": f"{at}/{path}" for name, path in named.items()}
        return JSONResponse(
            document | {"issuer": self.named if self.flaw != "metadata" else "http://other", "jwks_uri": f"{at}/jwks"}
        )

    async def _authorize(self, request: Request) -> Response:
        given = dict(request.query_params)
        assert (given["response_type"], given["client_id"]) == ("code", CLIENT)
        assert (given["redirect_uri"], given["code_challenge_method"]) == (self.redirect_uri, "S256")
        code = secrets.token_hex(8)
        self._codes[code] = given
        answer = {"code": code, "state": given["state"], "iss": self.named}
        if self.flaw == "denied":
            answer = {"error": "access_denied", "state": given["state"]}
        return RedirectResponse(f"{given['redirect_uri']}?{urlencode(answer)}", status_code=303)

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        pair = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        asked = self._codes.pop(form["code"], None)
        if pair.partition(":")[0] != CLIENT or asked is None or form["redirect_uri"] != self.redirect_uri:
            return JSONResponse({"error": "invalid_grant"}, 400)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse(
            {"access_token": "at-1", "token_type": "Bearer", "id_token": self._id_token(asked["nonce"])}
        )

    def _id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {"iss": self.named, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce}
        claims |= {name: value for name, value in self.person.items() if name not in self.only_at_userinfo}
        flaws: dict[str, dict[str, Any]] = {
            "nonce": {"nonce": "another"},
            "audience": {"aud": "another client"},
            "party": {"aud": [CLIENT, "another"], "azp": "another"},
            "issuer": {"iss": "https://another.example"},
            "expired": {"exp": now - 120, "iat": now - 500},
            "early": {"nbf": now + 500},
            "access token": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
        }
        claims |= flaws.get(self.flaw or "", {})
        match self.flaw:
            case "none":
                parts = (b'{"alg":"none"}', json.dumps(claims).encode())
                return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
            case "shared secret":
                key = OctKey.import_key(CLIENT_SECRET)
                return str(jwt.encode({"alg": "HS256"}, claims, key))
            case "public key as a secret":
                key = OctKey.import_key(self.key.as_pem(private=False))
                return str(jwt.encode({"alg": "HS256", "kid": "one"}, claims, key))
            case "another key":
                return str(jwt.encode({"alg": "RS256", "kid": "one"}, claims, RSAKey.generate_key(2048)))
            case "no token":
                return "nonsense"
        return str(jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key))

    async def _jwks(self, request: Request) -> Response:
        self.asked.append("keys")
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def _userinfo(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer at-1"
        return JSONResponse(self.person | ({"sub": "another"} if self.flaw == "userinfo" else {}))

    async def _logout(self, request: Request) -> Response:
        self.asked.append(f"logout of {request.query_params['client_id']}")
        return Response("bye")


@contextmanager
def openid_provider() -> Iterator[OpenIdProvider]:
    provider = OpenIdProvider()
    with serving(provider.app()) as url:
        provider.issuer = url
        yield provider
