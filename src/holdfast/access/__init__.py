"""Who asks, and what they may: one path for the HTTP API and for the pages of the dashboard (rule 19)."""

from __future__ import annotations

from holdfast.access.gate import Authenticate, Gate, identity_of, require, require_one, require_whole
from holdfast.access.identity import EVERY_SCOPE, ROLES, Identity, Role, Scope, scopes_of

__all__ = [
    "EVERY_SCOPE",
    "ROLES",
    "Authenticate",
    "Identity",
    "Gate",
    "Role",
    "Scope",
    "identity_of",
    "require",
    "require_one",
    "require_whole",
    "scopes_of",
]
