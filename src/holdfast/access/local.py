"""Who calls where nobody has to say so: the person at this machine. Only ever on loopback (rule 19)."""

from __future__ import annotations

from starlette.requests import Request

from holdfast.access.gate import Authenticate
from holdfast.access.identity import EVERY_SCOPE, Identity
from holdfast.access.origin import is_local
from holdfast.client import Client


def at_this_machine(client: Client) -> Authenticate:
    """Everything is allowed to whoever can reach loopback, as the program's own user."""
    identity = Identity(client.actor, client.scope, EVERY_SCOPE, ambient=True, whole=True)

    def authenticate(request: Request) -> Identity | None:
        return identity if is_local(request) else None

    return authenticate
