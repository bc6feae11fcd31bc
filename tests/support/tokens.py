"""API tokens for the tests of stores."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.units import Duration
from holdfast.features.assembly import Store
from holdfast.features.tokens.model import SESSION_PREFIX, ApiToken, Issuing, hash_of, new_token, shown_of
from tests.support.stores import new_id


def issuing(text: str | None = None, roles: Sequence[str] = ("viewer",), expires: Duration | None = None) -> Issuing:
    return Issuing.of(new_id(), text or new_token(), "ada", roles, (), expires)


def open_session(store: Store, text: str, ttl: float = 60.0) -> tuple[str, ApiToken | None]:
    session = new_token(SESSION_PREFIX)
    opening = store.tokens.open_session(hash_of(text), new_id(), hash_of(session), shown_of(session), ttl)
    return session, store.run(opening)
