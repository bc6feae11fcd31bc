"""Who calls, by an API token or by the session of a browser that was logged in with one (rule 25).

A token comes in ``Authorization: Bearer``, a session in a cookie, and neither is taken for the other. What was found
is believed for ``REMEMBERED`` seconds, so that a busy client costs one look at the database in that time: a token that
is revoked opens nothing after that. When one was last used is noted at most once a minute, beside the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from starlette.requests import Request

from holdfast.access.identity import Identity
from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.errors import HoldfastError
from holdfast.features.tokens.model import SESSION_PREFIX, hash_of, is_token, new_token, shown_of
from holdfast.stores.ids import new_id
from holdfast.stores.session import Client

log = logging.getLogger("holdfast.access")

COOKIE = "holdfast_session"
TENANT_HEADER = "holdfast-tenant"
REMEMBERED = 2.0
NOTED_EVERY = 60.0
LAST_NOTE = 3.0
MOST_REMEMBERED = 10_000
SESSION = 12 * 3600.0


@dataclass(slots=True)
class _Known:
    identity: Identity
    until: float
    noted: float = float("-inf")


class Tokens:
    """An ``Authenticate``; also opens and ends sessions, for the page to log in at."""

    def __init__(self, client: Client, remember: float = REMEMBERED) -> None:
        self._client, self._remember = client, remember
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._noting: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request) -> Identity | None:
        presented = presented_by(request)
        if presented is None:
            return None
        known = await self._find(hash_of(presented))
        if known is None:
            return None
        identity = known.identity
        if identity.tenant == EVERY_TENANT and (named := request.headers.get(TENANT_HEADER)) is not None:
            return replace(identity, tenant=check_name(named, "tenant"))
        return identity

    async def open(self, text: str) -> str | None:
        """A session for whoever holds this token; None if it is not good. The caller puts it into the cookie."""
        if not is_token(text):
            return None
        session = new_token(SESSION_PREFIX)
        opening = self._client.verbs.open_session(hash_of(text), new_id(), hash_of(session), shown_of(session), SESSION)
        return None if await self._client.arun(opening) is None else session

    async def end(self, request: Request) -> None:
        """Log out: this session opens nothing any more."""
        session = request.cookies.get(COOKIE)
        if session is not None and is_token(session, SESSION_PREFIX):
            self._known.pop(hash_of(session), None)
            await self._client.arun(self._client.verbs.end_session(hash_of(session)))

    async def _find(self, hashed: str) -> _Known | None:
        now = time.monotonic()
        known = self._known.get(hashed)
        if known is None or known.until <= now:
            token = await self._client.arun(self._client.verbs.token_of(hashed))
            if token is None:
                self._known.pop(hashed, None)
                return None
            ambient = token.is_session
            identity = Identity(token.name, token.tenant, token.allows, ambient=ambient, credential=token.id)
            noted = float("-inf") if known is None else known.noted
            known = self._known[hashed] = _Known(identity, now + self._remember, noted)
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        if known.noted + NOTED_EVERY <= now:
            known.noted = now
            task = asyncio.create_task(self._note(hashed))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)
        return known

    async def _note(self, hashed: str) -> None:
        try:
            await self._client.arun(self._client.verbs.token_used(hashed))
        except HoldfastError as error:  # nobody is kept waiting, or refused, for the sake of this
            log.warning("the use of a token could not be noted: %s", error)

    async def aclose(self) -> None:
        """With the service: what is being noted comes to its end, unless the database lets it wait for long."""
        if self._noting:
            _, late = await asyncio.wait(self._noting, timeout=LAST_NOTE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def tokens_of(app: App, *, remember: float = REMEMBERED) -> Tokens:
    """For ``make_service(app, authenticate=tokens_of(app))``."""
    return Tokens(app.client, remember)


def presented_by(request: Request) -> str | None:
    """What the request shows, if it can be one of ours at all: a typing error does not get as far as the database."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind:
        text = text.strip()
        return text if kind.lower() == "bearer" and is_token(text) else None
    session = request.cookies.get(COOKIE)
    return session if session is not None and is_token(session, SESSION_PREFIX) else None
