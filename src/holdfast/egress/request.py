"""A request that is to go out: checked before a name is resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.egress.policy import EgressPolicy
from holdfast.egress.target import Target, refused

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
