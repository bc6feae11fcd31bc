"""Who calls where nobody has to say so: the person at this machine. Only ever on loopback (rule 19)."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from holdfast.access.gate import Authenticate
from holdfast.access.identity import EVERY_SCOPE, Identity
from holdfast.access.origin import is_local
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.stores.session import Client

TENANT_HEADER = "holdfast-tenant"


def at_this_machine(client: Client) -> Authenticate:
    """Everything is allowed to whoever can reach loopback, as the program's own user. ``Holdfast-Tenant`` names another
    tenant than the program's, or ``*`` to look at all of them."""
    identity = Identity(client.actor, client.scope, EVERY_SCOPE, ambient=True, whole=True)

    def authenticate(request: Request) -> Identity | None:
        if not is_local(request):
            return None
        named = request.headers.get(TENANT_HEADER)
        return identity if named is None else replace(identity, tenant=_whose(named))

    return authenticate


def _whose(named: str) -> str:
    return named if named == EVERY_TENANT else check_name(named, "tenant")
