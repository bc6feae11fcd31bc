"""Arguments of a workflow's job that are results of other jobs.

A plan writes a mark with the source of the value into the payload. The worker replaces the mark by the value before it
calls the handler, so the handler takes ordinary arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from holdfast.engine.payload import decode

RESULT_MARK: Final = "holdfast:result"
CALLBACK_TAG: Final = "holdfast:callback"
"""The tag of workflow callbacks, which do not belong to a workflow: it tells the worker to search their payload."""

Source = str | list[Any] | dict[str, Any]
"""A job id stands for the job's result, a list of ids for a list of results, ``{"map": id}`` for the results of the
jobs that this job added; in a callback ``{"ends": true}`` for the results of the workflow, and ``{"failure":
true}``."""


Schema = Mapping[str, Any]


class Values(Protocol):
    """Looks up the values of marks."""

    def result(self, job_id: str) -> Any: ...
    def mapped(self, job_id: str) -> Any: ...
    def ends(self) -> Any: ...
    def failure(self) -> Any: ...


class ResultOf(dict[str, Any]):
    """The mark. ``schema`` is the JSON schema of the value, as far as it is known when the job is planned, and
    ``label`` names its source in errors; neither is stored."""

    def __init__(self, source: Source, schema: Schema | None = None, label: str = "") -> None:
        super().__init__({RESULT_MARK: source})
        self.schema: Schema = schema or {}
        self.label = label


def rebound(payload: str, ids: Mapping[str, str]) -> str:
    """The payload with other ids in its marks, for a copy of the plan."""

    def change(source: Source) -> Source:
        if isinstance(source, str):
            return ids.get(source, source)
        if isinstance(source, list):
            return [change(item) for item in source]
        return {tag: ids.get(value, value) if tag == "map" else value for tag, value in source.items()}

    return _replaced(payload, lambda source: {RESULT_MARK: change(source)})


def filled(payload: str, values: Values) -> str:
    """The payload with the values in place of the marks."""

    def value(source: Source) -> Any:
        match source:
            case str():
                return values.result(source)
            case list():
                return [value(item) for item in source]
            case {"map": str(job_id)}:
                return values.mapped(job_id)
            case {"ends": True}:
                return values.ends()
            case {"failure": True}:
                return values.failure()
            case _:
                raise ValueError("malformed mark")

    return _replaced(payload, value)


def _replaced(payload: str, change: Callable[[Source], Any]) -> str:
    values = decode(payload)
    if not isinstance(values, dict):
        return payload
    for name, value in values.items():
        if isinstance(value, dict) and value.keys() == {RESULT_MARK}:
            source: Any = value[RESULT_MARK]
            values[name] = change(source)
    return json.dumps(values)
