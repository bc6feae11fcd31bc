"""Arguments of a workflow's job that are results of other jobs.

A plan writes a mark with the ids of those jobs into the payload; the worker puts the results in its place before the
handler is called, so the handler takes ordinary arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.engine.payload import decode

RESULT_MARK: Final = "holdfast:result"


class ResultOf(dict[str, Any]):
    """The mark: the id of a job for its result, a list of ids for the list of their results."""

    def __init__(self, job: str | Sequence[str]) -> None:
        super().__init__({RESULT_MARK: job if isinstance(job, str) else list(job)})


def rebound(payload: str, ids: Mapping[str, str]) -> str:
    """The payload with other ids in its marks: for a copy of the plan."""
    return _replaced(payload, lambda job: ids.get(job, job), as_mark=True)


def filled(payload: str, result: Callable[[str], Any]) -> str:
    """The payload with the results in place of the marks."""
    return _replaced(payload, result, as_mark=False)


def _replaced(payload: str, change: Callable[[str], Any], *, as_mark: bool) -> str:
    values = decode(payload)
    if not isinstance(values, dict):
        return payload
    for name, value in values.items():
        if isinstance(value, dict) and value.keys() == {RESULT_MARK}:
            job: Any = value[RESULT_MARK]
            new = change(job) if isinstance(job, str) else [change(each) for each in job]
            values[name] = {RESULT_MARK: new} if as_mark else new
    return json.dumps(values)
