"""``send``: checks a request, resolves the host, follows redirects and returns the response.

A name is resolved once, every address is checked, and only checked addresses are connected to. If one address of a name
is refused, the name is refused: mixed addresses are a way to make a client try until it reaches the forbidden one.
Forms such as 2130706433 or 0x7f.1 need no special care, because the resolver turns them into addresses.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.errors import EgressTimeout, EgressUnreachable
from holdfast.outgoing.policy import EgressPolicy, Target, refusal, refused

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEADERS: Final = 100
USER_AGENT: Final = "holdfast"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")
# Headers of the transport, which are set here.
_TRANSPORT: Final = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"),
        *("keep-alive", "accept-encoding", "proxy-authorization", "proxy-connection"),
    }
)
# Headers that may follow a redirect to another origin. Any other may contain credentials.
_ANONYMOUS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request. ``timeout`` can only shorten the time limit of the policy."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    timeout: float | None = None

    def check(self, policy: EgressPolicy) -> Target:
        if self.method not in METHODS:
            raise refused(f"a method is one of {', '.join(sorted(METHODS))}")
        if len(self.body) > policy.max_request_bytes:
            raise refused(f"the body has {len(self.body):,} bytes; {policy.max_request_bytes:,} may be sent")
        if len(self.headers) > HEADERS:
            raise refused(f"at most {HEADERS} headers may be sent")
        given: Mapping[Any, Any] = self.headers
        for name, value in given.items():
            if not isinstance(name, str) or not _TOKEN.fullmatch(name):
                raise refused("the name of a header has invalid characters")
            if not isinstance(value, str) or not _VALUE.fullmatch(value):
                raise refused(f"the header {name} has line breaks or other invalid characters")
            if name.lower() in _TRANSPORT:
                raise refused(f"the header {name} is not for the sender to choose")
        return Target.of(self.url)

    def lines(self, target: Target) -> list[tuple[bytes, bytes]]:
        """All headers as they are sent."""
        headers = {"Host": target.authority, "User-Agent": USER_AGENT, "Accept": "*/*"}
        given = {name.lower() for name in self.headers}
        headers = {name: value for name, value in headers.items() if name.lower() not in given}
        headers |= {**self.headers, "Accept-Encoding": "gzip", "Connection": "close"}
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(self.body))
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]

    def redirected(self, status: int, start: Target, end: Target) -> Outgoing:
        """The request that follows a redirect: without headers that may contain credentials, if the origin changes."""
        if start.scheme == "https" and end.scheme == "http":
            raise refused("a redirect leads from https to http")
        request = self
        if (status == 303 and self.method != "HEAD") or (status in (301, 302) and self.method == "POST"):
            headers = {name: value for name, value in self.headers.items() if name.lower() != "content-type"}
            request = replace(request, method="GET", headers=headers, body=b"")
        if (start.scheme, start.host, start.port) != (end.scheme, end.host, end.port):
            if request.body:
                raise refused("a redirect would take the body to another origin")
            headers = {name: value for name, value in request.headers.items() if name.lower() in _ANONYMOUS}
            request = replace(request, headers=headers)
        return request


MOST_ADDRESSES: Final = 64


async def resolve(target: Target, policy: EgressPolicy) -> list[str]:
    """The addresses of the host, at least one, all of them checked."""
    resolver = policy.resolver or _system
    try:
        async with asyncio.timeout(policy.connect):
            addresses = list(dict.fromkeys(await resolver(target.host, target.port)))
    except TimeoutError:
        raise EgressTimeout(f"{target.host} was not resolved within {policy.connect} s") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise EgressUnreachable(f"{target.host} cannot be resolved: {why}") from None
    if not addresses:
        raise EgressUnreachable(f"{target.host} has no address")
    if len(addresses) > MOST_ADDRESSES:
        raise refused(f"{target.host} has more than {MOST_ADDRESSES} addresses")
    for address in addresses:
        why_not = refusal(address, policy.open_networks, policy.closed_networks)
        if why_not is not None:
            raise refused(
                f"{target.host} may not be reached: {why_not}",
                fix="An operator can allow its network in the egress policy.",
            )
    return addresses


async def _system(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # An IPv6 socket address has four parts, the last of which is the zone.
    return [f"{part[0]}%{part[3]}" if len(part) == 4 and part[3] else str(part[0]) for *_, part in infos]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. ``body`` is decompressed. ``address`` is the address that was connected to; ``origin`` is the last
    one after redirects."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    elapsed: float
    address: str
    origin: str
    truncated: bool = False

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        lower = name.lower()
        return next((value for key, value in self.headers if key.lower() == lower), None)


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


async def send(request: Outgoing, policy: EgressPolicy) -> Answer:
    """Send a request and return the response, whatever its status. Raises ``EgressRefused``, before anything is sent,
    if the policy does not allow it."""
    target = request.check(policy)
    limit = policy.total if request.timeout is None else min(policy.total, request.timeout)
    start = time.monotonic()
    try:
        async with asyncio.timeout(limit) as clock:
            for left in range(policy.redirects, -1, -1):
                answer = await _once(request, target, policy, start, clock.when() or 0.0)
                location = answer.header("location")
                if not policy.redirects or answer.status not in REDIRECTS or location is None:
                    return answer
                if left == 0:
                    break
                end = target.joined(location)
                request, target = request.redirected(answer.status, target, end), end
    except TimeoutError:
        raise EgressTimeout(f"{target.origin} had not answered after {limit} s") from None
    raise refused(f"more than {policy.redirects} redirects")


async def _once(request: Outgoing, target: Target, policy: EgressPolicy, start: float, until: float) -> Answer:
    from holdfast.outgoing.connection import body_of, exchange, headers_of, pieces_of  # needs the extra `http`

    policy.check(target)
    addresses = await resolve(target, policy)
    async with exchange(request, target, addresses, policy) as (response, address):
        headers = headers_of(response.headers, policy)
        async with aclosing(pieces_of(response, target)) as pieces:
            body, truncated = await body_of(pieces, headers, policy, until)
    return Answer(response.status, headers, body, time.monotonic() - start, address, target.origin, truncated)
