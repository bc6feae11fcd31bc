"""Which jobs are meant: what a caller says, checked, as a store takes it. For listing them and for acting on many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holdfast.engine.states import State
from holdfast.engine.times import instant
from holdfast.errors import InvalidSetting
from holdfast.stores.base import JobFilter

_PAGE = frozenset({"before", "limit", "payloads"})
_ALL = frozenset(field.name for field in fields(JobFilter))
_WHICH = _ALL - _PAGE - {"tenant"}


def page_of(tenant: str, wanted: Mapping[str, Any]) -> JobFilter:
    """Some of them, newest first."""
    limit = wanted.get("limit", 1)
    if not isinstance(limit, int) or limit < 1:
        raise InvalidSetting("a page has at least one job: limit=50", code="invalid_limit")
    return JobFilter(**{"tenant": tenant, **_checked(wanted, _ALL)})


def all_of(tenant: str, wanted: Mapping[str, Any]) -> JobFilter:
    """All of them."""
    return JobFilter(tenant=tenant, **_checked(wanted, _WHICH))


def _checked(wanted: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    if unknown := wanted.keys() - known:
        raise InvalidSetting(f"jobs are not chosen by {', '.join(sorted(unknown))}", code="unknown_option")
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in ("since", "until"):
        if name in given:
            given[name] = instant(given[name], name)
    if "state" in given:
        given["state"] = _state(given["state"])
    return given


def _state(given: object) -> State:
    try:
        return State(given)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidSetting(f"there is no state {given!r}: {', '.join(State)}", code="unknown_state") from None
