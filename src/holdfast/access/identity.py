"""An identity: who asks, for which tenant, and what they may do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.tokens.model import EVERY_SCOPE, ROLES, Role, Scope, scopes_of

__all__ = ["EVERY_SCOPE", "ROLES", "Identity", "Role", "Scope", "scopes_of"]


@dataclass(frozen=True, slots=True)
class Identity:
    """``tenant`` is ``*`` for those who look after everybody's. ``ambient`` is one whom the browser vouches for by
    itself (a cookie, the local machine), so that what it asks for must come from our own pages (rule 22)."""

    actor: str
    tenant: str
    scopes: frozenset[Scope]
    ambient: bool = False
    credential: str | None = None
    """The id of the token, for the ledger of its use; None for those who came otherwise."""
    whole: bool = False
    """Looks after everybody's, also while working for one tenant: the person at this machine."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def everywhere(self) -> bool:
        return self.tenant == EVERY_TENANT

    @property
    def runs_all(self) -> bool:
        """Whether it may do what concerns every tenant: tenants, executors, the seals of the ledger."""
        return self.whole or self.everywhere
