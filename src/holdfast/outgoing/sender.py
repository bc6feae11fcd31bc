"""``send``: the request, name resolution, redirects and the answer.

From a name to addresses, once: every answer is judged, and only what was judged is connected to (rule 1).

A name whose answers are partly good is refused whole: whoever mixes them wants us to try until one of the others is
taken. Forms such as 2130706433 or 0x7f.1 need no care of their own: the resolver makes addresses of them (rule 3).
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
from holdfast.outgoing.addresses import refusal
from holdfast.outgoing.policy import EgressPolicy, Target, refused

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEADERS: Final = 100
USER_AGENT: Final = "holdfast"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")
# They say how the message travels, which is decided here.
_OURS: Final = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"),
        *("keep-alive", "accept-encoding", "proxy-authorization", "proxy-connection"),
    }
)
# All else could say who asks, whatever it is called.
_ANONYMOUS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """``timeout`` makes the policy's time shorter, never longer."""

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
                raise refused("the name of a header has characters that none may have")
            if not isinstance(value, str) or not _VALUE.fullmatch(value):
                raise refused(f"the header {name} has line breaks or other characters that none may have")
            if name.lower() in _OURS:
                raise refused(f"the header {name} is not for the sender to choose")
        return Target.of(self.url)

    def lines(self, target: Target) -> list[tuple[bytes, bytes]]:
        """All headers, as they go over the wire."""
        made = {"Host": target.authority, "User-Agent": USER_AGENT, "Accept": "*/*"}
        own = {name.lower() for name in self.headers}
        made = {name: value for name, value in made.items() if name.lower() not in own}
        made |= {**self.headers, "Accept-Encoding": "gzip", "Connection": "close"}
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            made["Content-Length"] = str(len(self.body))
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in made.items()]

    def redirected(self, status: int, start: Target, end: Target) -> Outgoing:
        """The request that follows a redirect: without what could tell who asks where it leads elsewhere."""
        if start.scheme == "https" and end.scheme == "http":
            raise refused("a redirect leads from https to http")
        after = self
        if (status == 303 and self.method != "HEAD") or (status in (301, 302) and self.method == "POST"):
            kept = {name: value for name, value in self.headers.items() if name.lower() != "content-type"}
            after = replace(after, method="GET", headers=kept, body=b"")
        if (start.scheme, start.host, start.port) != (end.scheme, end.host, end.port):
            if after.body:
                raise refused("a redirect would take the body to another origin")
            kept = {name: value for name, value in after.headers.items() if name.lower() in _ANONYMOUS}
            after = replace(after, headers=kept)
        return after


ANSWERS: Final = 64


async def resolve(target: Target, policy: EgressPolicy) -> list[str]:
    """The addresses, all of them judged; at least one."""
    ask = policy.resolver or _system
    try:
        async with asyncio.timeout(policy.connect):
            found = list(dict.fromkeys(await ask(target.host, target.port)))
    except TimeoutError:
        raise EgressTimeout(f"{target.host} was not resolved within {policy.connect} s") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise EgressUnreachable(f"{target.host} cannot be resolved: {why}") from None
    if not found:
        raise EgressUnreachable(f"{target.host} has no address")
    if len(found) > ANSWERS:
        raise refused(f"{target.host} has more than {ANSWERS} addresses")
    for address in found:
        why_not = refusal(address, policy.open_networks, policy.closed_networks)
        if why_not is not None:
            raise refused(
                f"{target.host} may not be reached: {why_not}",
                fix="An operator can allow its network in the egress policy.",
            )
    return found


async def _system(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [f"{place[0]}%{place[3]}" if len(place) == 4 and place[3] else str(place[0]) for *_, place in found]


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is unpacked. ``address`` is the one that was connected to; ``origin`` the last one after redirects."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    elapsed: float
    address: str
    origin: str
    truncated: bool = False

    def header(self, name: str) -> str | None:
        """The first of this name, whatever its case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


async def send(request: Outgoing, policy: EgressPolicy) -> Answer:
    """The answer, whatever its status. ``EgressRefused`` before anything is sent where the policy says no."""
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
