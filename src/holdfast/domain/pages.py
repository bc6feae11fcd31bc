"""Where in a list by tenants and names somebody has come to: the next page begins after it. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple, TypedDict

from holdfast.domain.errors import InvalidInput, InvalidPayload
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.payload import decode


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
            found = decode(text) if scope == EVERY_TENANT else [scope, text]
        except InvalidPayload:
            raise unknown_place() from None
        match found:
            case [str(tenant), str(name)] if "\0" not in tenant + name:
                return cls(tenant, name)
        raise unknown_place()


def page_size(limit: object) -> int:
    """How many at most; ``InvalidInput`` for what is no number."""
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise InvalidInput(f"limit must be a whole number, not {type(limit).__name__}", code="invalid_input")
    return limit


class Paging(TypedDict, total=False):
    """Which part of a list: those after a place, at most so many. Nothing said, all of it."""

    after: Place | None
    limit: int | None


def unknown_place() -> InvalidInput:
    return InvalidInput("this is no place in the list", code="invalid_cursor", fix="Give the next of the page before.")
