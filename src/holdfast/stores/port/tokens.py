"""The port of API tokens (rule 25): a part of ``Verbs`` in ``base``. Tokens themselves are never in it, only hashes."""

from __future__ import annotations

from typing import Protocol

from holdfast.features.tokens.model import ApiToken, Issuing
from holdfast.stores.flow import Flow


class TokenVerbs(Protocol):
    def issue_token(self, new: Issuing, actor: str, tenant: str) -> Flow[ApiToken]: ...
    def revoke_token(self, token_id: str, actor: str, tenant: str) -> Flow[ApiToken | None]:
        """From now on it opens nothing, nor do its sessions; None when this tenant has no such token."""
        ...

    def token_of(self, token_hash: str) -> Flow[ApiToken | None]:
        """The one that has this hash, of whatever tenant, if it is still good: whoever knows a hash held the token."""
        ...

    def token_used(self, token_hash: str) -> Flow[None]:
        """Note that it was used; at most once a minute."""
        ...

    def open_session(
        self, token_hash: str, session_id: str, session_hash: str, prefix: str, ttl: float
    ) -> Flow[ApiToken | None]:
        """A session that may what this token may, and no longer; None when the token is not good."""
        ...

    def end_session(self, session_hash: str) -> Flow[bool]: ...
    def tokens(
        self, tenant: str, sessions: bool = False, before: str | None = None, limit: int = 50
    ) -> Flow[list[ApiToken]]:
        """Newest first, those that are over among them; sessions only where they are asked for."""
        ...
