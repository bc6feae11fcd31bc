"""Which jobs a page is about: what its address says, in the same words as the search box and the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.datastructures import ImmutableMultiDict

from holdfast.engine.ids import parse_id
from holdfast.engine.states import ACTIVE, State
from holdfast.errors import InvalidInput
from holdfast.features.dead_letters.model import BulkVerb
from holdfast.features.jobs.search import Search, narrowed, parse

PAGE = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """What was asked for: the tab, the words, and from where on."""

    state: State | None
    text: str
    search: Search
    before: str | None = None

    @classmethod
    def of(cls, given: ImmutableMultiDict[str, str], now: Any) -> Finding:
        text = str(given.get("q") or "").strip()
        said, before = str(given.get("state") or ""), str(given.get("before") or "")
        try:
            state = State(said) if said else None
        except ValueError:
            raise InvalidInput(f"there is no state {said[:50]!r}: {', '.join(State)}", code="unknown_state") from None
        search = parse(text, now)
        named = search.given.get("state")
        search = narrowed(search, state=state)
        return cls(named or state, text, search, parse_id(before) if before else None)

    @property
    def chosen(self) -> dict[str, Any]:
        """For an operation on all of them."""
        return dict(self.search.given)

    @property
    def verbs(self) -> tuple[BulkVerb, ...]:
        """What can be done to what is listed."""
        if self.state is None:
            return ("cancel", "redrive", "discard")
        if self.state is State.DEAD_LETTER:
            return ("redrive", "discard")
        return ("cancel",) if self.state in ACTIVE else ()


def only_id(text: str) -> str | None:
    """The id, if that is all that was searched for."""
    try:
        return parse_id(text.strip())
    except InvalidInput:
        return None
