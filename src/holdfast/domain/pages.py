"""Where in a list by tenants and names somebody has come to: the next page begins after it. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple, TypedDict

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import EVERY_TENANT


class Place(NamedTuple):
    """The last one seen."""

    tenant: str
    name: str

    def cursor(self, scope: str) -> str:
        """As text: for one tenant the name alone, for those who look at everybody's both."""
        return json.dumps([*self]) if scope == EVERY_TENANT else self.name

    @classmethod
    def read(cls, text: str | None, scope: str) -> Place | None:
        if text is None:
            return None
        try:
            tenant, name = json.loads(text) if scope == EVERY_TENANT else (scope, text)
        except (ValueError, TypeError):
            raise _unknown() from None
        if not (isinstance(tenant, str) and isinstance(name, str)) or "\0" in tenant + name:
            raise _unknown()
        return cls(tenant, name)


class Paging(TypedDict, total=False):
    """Which part of a list: those after a place, at most so many. Nothing said, all of it."""

    after: Place | None
    limit: int | None


def _unknown() -> InvalidInput:
    return InvalidInput("this is no place in the list", code="invalid_cursor", fix="Give the next of the page before.")
