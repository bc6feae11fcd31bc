"""The service as a client knows it: where it is, who asks, and how patient one is. The token is added at the last
moment, to requests for that very origin, and is shown by nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from holdfast import __version__
from holdfast.errors import InvalidSetting
from holdfast.http.sending import Base, Retrying
from holdfast.http.wire import Request


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
                raise InvalidSetting(f"the {what} holds something that no header can carry", code="invalid_name")

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
