"""The service as a client knows it: where it is, who asks, and how patient one is. The token is added at the last
moment, to requests for that very origin, and is shown by nothing.

Getting an answer: what is sent again, when and how often, and where a redirect may lead.

Only what is repeatable is sent again: reads, and requests that carry an Idempotency-Key. Everything is bounded: the
number of tries, each pause, and what a ``Retry-After`` may ask for.
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
from holdfast.engine.retry import asked_delay, http_date
from holdfast.errors import InvalidSetting, StoreError, StoreUnavailable
from holdfast.remote.http_requests import Open, Pause, Reply, Request, Send, Steps, Unreachable
from holdfast.remote.responses import may_pass

# Busy, or somebody in between has no service behind it. A 500 is a mistake there: it would only be made again.
AGAIN = frozenset({429, 502, 503, 504})
API = "/api/v1"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
KEEPING_THE_METHOD = frozenset({307, 308})
MOST_HOPS = 5


@dataclass(frozen=True, slots=True)
class Base:
    """Where the service is: its origin, and the path that it is mounted below."""

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
    """``tries`` is how often a request is sent in all; a pause is between half and all of ``first`` times two for
    each try, at most ``longest``, or what the service asks for if that is no more than ``obeyed``."""

    tries: int = 5
    first: float = 0.25
    longest: float = 8.0
    obeyed: float = 60.0
    draw: Callable[[], float] = random.random

    def pause(self, request: Request, got: Reply | Unreachable, tried: int) -> float | None:
        """How long to wait before the next try; None when there is none."""
        if not request.repeatable or tried >= self.tries:
            return None
        ours = min(self.longest, self.first * 2.0 ** (tried - 1)) * (0.5 + self.draw() / 2)
        if isinstance(got, Unreachable):
            return ours
        if got.status not in AGAIN or not may_pass(got):
            return None
        now = http_date(got.headers.get("date")) or datetime.now(UTC)
        theirs = asked_delay(got.headers.get("retry-after"), now, float("inf"))
        if theirs is None:
            return ours
        # Who asks for more patience than that is better told to the caller.
        return None if theirs > self.obeyed else max(theirs, ours)


def answer_to(request: Request, base: Base, retrying: Retrying, *, stream: bool = False) -> Steps[Reply]:
    """Whatever the service answered, also if it is a refusal; ``StoreUnavailable`` when it did not answer."""
    tried = hops = 0
    while True:
        tried += 1
        got: Reply | Unreachable = yield (Open(request) if stream else Send(request))
        if isinstance(got, Reply) and got.status in REDIRECTS:
            hops += 1
            request = _followed(request, got, base, hops)
            continue
        pause = retrying.pause(request, got, tried)
        if pause is not None and time.monotonic() + pause < request.until:
            yield Pause(pause)
        elif isinstance(got, Reply):
            return got
        else:
            raise unanswered(request, base, got, tried)


def _followed(request: Request, got: Reply, base: Base, hops: int) -> Request:
    """The request to where it was sent on. Another origin is never gone to: the token is not for it."""
    origin, path, query = _target(base.at(request.path), got.headers.get("location", ""))
    if origin != base.origin or not path.startswith(base.api + "/"):
        raise StoreError(
            f"{base.url} redirects to another server; the token is not sent there",
            code="redirected",
            fix="Give the URL at which the service itself answers.",
        )
    if hops > MOST_HOPS or (request.method != "GET" and got.status not in KEEPING_THE_METHOD):
        raise StoreError(f"{base.url} redirects too often", code="redirected")
    said = tuple(parse_qsl(query, keep_blank_values=True))
    return dataclasses.replace(request, path=path.removeprefix(base.api), query=said)


def _target(here: str, location: str) -> tuple[str, str, str]:
    """Its origin, path and query; nothing of what is no URL."""
    try:
        parts = urlsplit(urljoin(here, location))
        return _origin(parts.scheme, parts.hostname or "", parts.port), parts.path, parts.query
    except ValueError:
        return "", "", ""


def unanswered(request: Request, base: Base, why: Unreachable, tried: int) -> StoreUnavailable:
    known = "" if request.repeatable else "; whether it was carried out is not known"
    often = f" after {tried} tries" if tried > 1 else ""
    return StoreUnavailable(f"{base.url} did not answer {request.method} {request.path}{often}: {why}{known}")


def _origin(scheme: str, host: str, port: int | None) -> str:
    """Written one way only, so that two of the same are equal."""
    name = f"[{host}]" if ":" in host else host
    usual = {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{name}" if port is None or port == usual else f"{scheme}://{name}:{port}"


def _not_a_service() -> InvalidSetting:
    return InvalidSetting(
        "this is not the URL of a service", code="invalid_url", fix="Use for example https://jobs.example.com/holdfast."
    )


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as the transport is given it. ``within`` is how many seconds there are for the whole answer."""

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
        for what, value in (("token", self.token), ("tenant", self.tenant or "")):
            if not value.isascii() or not value.isprintable() or " " in value:
                raise InvalidSetting(f"the {what} contains characters that a header cannot carry", code="invalid_name")

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
