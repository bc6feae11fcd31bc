"""The connection to a service: its URL, token and timeouts; retries and redirects.

The token is added last, only to requests for the origin of the service, and appears in no representation. Only
repeatable requests are sent again: reads, settings, and requests with an Idempotency-Key. The number of attempts, each
pause and the accepted ``Retry-After`` are bounded.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urljoin, urlsplit

from holdfast import __version__
from holdfast.engine.retry import http_date, retry_after_delay
from holdfast.errors import InvalidSetting, StoreError, StoreUnavailable
from holdfast.remote.http_requests import Open, Pause, Reply, Request, Send, Steps, Unreachable
from holdfast.remote.responses import is_temporary

# The service is busy, or a proxy cannot reach it. A 500 is a bug of the service, which a retry would repeat.
RETRIED = frozenset({429, 502, 503, 504})
API = "/api/v1"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
SAME_METHOD = frozenset({307, 308})
MAX_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class Base:
    """The URL of a service: its origin, and the path prefix under which it is mounted."""

    origin: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Base:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _not_a_service() from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise _not_a_service()
        if parts.username is not None or parts.password is not None:
            raise InvalidSetting("a service URL must not contain a password", code="invalid_url", fix="Pass token=….")
        return cls(_origin(parts.scheme, parts.hostname, port), parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        return self.origin + self.prefix

    @property
    def api(self) -> str:
        return self.prefix + API

    def at(self, path: str) -> str:
        return self.origin + self.api + path


@dataclass(frozen=True, slots=True)
class Retrying:
    """How requests are retried. ``tries`` is the total number of times a request is sent. The pause starts at ``first``
    seconds, doubles each time up to ``longest``, and is reduced by up to half at random. A ``Retry-After`` of up to
    ``obeyed`` seconds is respected."""

    tries: int = 5
    first: float = 0.25
    longest: float = 8.0
    obeyed: float = 60.0
    draw: Callable[[], float] = random.random

    def pause(self, request: Request, result: Reply | Unreachable, tried: int) -> float | None:
        """Seconds to wait before the request is sent again; None if it is not."""
        if not request.repeatable or tried >= self.tries:
            return None
        backoff = min(self.longest, self.first * 2.0 ** (tried - 1)) * (0.5 + self.draw() / 2)
        if isinstance(result, Unreachable):
            return backoff
        if result.status not in RETRIED or not is_temporary(result):
            return None
        now = http_date(result.headers.get("date")) or datetime.now(UTC)
        requested = retry_after_delay(result.headers.get("retry-after"), now, float("inf"))
        if requested is None:
            return backoff
        # For a longer delay the caller gets the error.
        return None if requested > self.obeyed else max(requested, backoff)


def send_with_retries(request: Request, base: Base, retrying: Retrying, *, stream: bool = False) -> Steps[Reply]:
    """The reply of the service, also an error; ``StoreUnavailable`` if there is none."""
    tried = redirects = 0
    while True:
        tried += 1
        result: Reply | Unreachable = yield (Open(request) if stream else Send(request))
        if isinstance(result, Reply) and result.status in REDIRECTS:
            redirects += 1
            request = _redirected(request, result, base, redirects)
            continue
        pause = retrying.pause(request, result, tried)
        if pause is not None and time.monotonic() + pause < request.until:
            yield Pause(pause)
        elif isinstance(result, Reply):
            return result
        else:
            raise no_response(request, base, result, tried)


def _redirected(request: Request, reply: Reply, base: Base, redirects: int) -> Request:
    """The request to the target of a redirect. Another origin is never contacted: the token is not for it."""
    origin, path, query = _target(base.at(request.path), reply.headers.get("location", ""))
    if origin != base.origin or not path.startswith(base.api + "/"):
        raise StoreError(
            f"{base.url} redirects to another server; the token is not sent there",
            code="redirected",
            fix="Pass the URL of the service itself.",
        )
    if redirects > MAX_REDIRECTS or (request.method != "GET" and reply.status not in SAME_METHOD):
        raise StoreError(f"{base.url} redirects too often", code="redirected")
    pairs = tuple(parse_qsl(query, keep_blank_values=True))
    return dataclasses.replace(request, path=path.removeprefix(base.api), query=pairs)


def _target(url: str, location: str) -> tuple[str, str, str]:
    """Origin, path and query of a redirect; empty if it is not a URL."""
    try:
        parts = urlsplit(urljoin(url, location))
        return _origin(parts.scheme, parts.hostname or "", parts.port), parts.path, parts.query
    except ValueError:
        return "", "", ""


def no_response(request: Request, base: Base, why: Unreachable, tried: int) -> StoreUnavailable:
    unknown = "" if request.repeatable else "; it is unknown whether it was carried out"
    attempts = f" after {tried} attempts" if tried > 1 else ""
    return StoreUnavailable(
        f"no response from {base.url} to {request.method} {request.path}{attempts}: {why}{unknown}",
        fix="Check the URL of the service and that it runs (holdfast serve).",
    )


def _origin(scheme: str, host: str, port: int | None) -> str:
    """The normalized origin, for comparison."""
    name = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{name}" if port is None or port == default else f"{scheme}://{name}:{port}"


def _not_a_service() -> InvalidSetting:
    return InvalidSetting(
        "this is not the URL of a service", code="invalid_url", fix="Use for example https://jobs.example.com/holdfast."
    )


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request for the transport. ``within`` is the number of seconds for the whole response."""

    method: str
    url: str
    within: float
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Link:
    base: Base
    token: str = field(default="", repr=False)
    tenant: str | None = None
    timeout: float = 30.0
    retrying: Retrying = field(default_factory=Retrying)

    def __post_init__(self) -> None:
        for name, value in (("token", self.token), ("tenant", self.tenant or "")):
            if not value.isascii() or not value.isprintable() or " " in value:
                raise InvalidSetting(f"the {name} contains characters that a header cannot carry", code="invalid_name")

    def outgoing(self, request: Request) -> Outgoing:
        headers = {"Accept": "application/json", "User-Agent": f"holdfast-python/{__version__}", **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.tenant is not None:
            headers["Holdfast-Tenant"] = self.tenant
        url = self.base.at(request.path)
        within = min(self.timeout + request.patience, max(0.0, request.until - time.monotonic()))
        return Outgoing(request.method, url, within, request.query, headers, request.body)
