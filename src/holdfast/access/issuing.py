"""Nobody issues more than they have: for the API and for the pages alike (rule 19)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.access.identity import Identity, scopes_of
from holdfast.errors import Refused


def refuse_beyond(identity: Identity, roles: Sequence[str], scopes: Sequence[str] = ()) -> None:
    """A token with the scope admin alone must not make itself one that decides, or works."""
    beyond = scopes_of(roles, scopes) - identity.scopes
    if beyond:
        raise Refused(
            f"nobody issues more than they have: {', '.join(sorted(beyond))}", code="missing_scope", fix="Narrow it."
        )
