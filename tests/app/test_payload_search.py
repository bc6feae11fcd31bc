"""Hostile searches and payload indexes through ``app.jobs``."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App
from holdfast.errors import HoldfastError, NotFound

pytestmark = pytest.mark.req("JF-20")


def outcome(app: App, text: Any, **how: Any) -> Any:
    try:
        return app.jobs.search(text, **how).jobs
    except HoldfastError as error:
        return error.code


def test_hostile_searches_and_paths_are_refused_or_find_nothing(app: App) -> None:
    app.enqueue("note", {"a": 1})
    tries = ("payload.a':1", "payload.a\"';drop table job;--:1", "payload.a'--:1' or 1=1", "payload.a:%", "payload.a:_")
    quoted = ("a') or 1=1 --", "$.a", "{a}", "a,b", "a\\\\")
    for text in (*tries, *(f'payload."{key}":1' for key in quoted)):
        assert outcome(app, text) in ([], "invalid_search"), text
    deep = "payload." + "a." * 21 + "a:1"
    for wrong in (
        "payload.:1",
        "payload.a:",
        "payload:1",
        "payload..a:1",
        'payload."a:1',
        deep,
        7,
        "payload.a:" + "x" * 1000,
    ):
        assert outcome(app, wrong) == "invalid_search", wrong
    for limit in (0, -1, 1001, "5", None):
        assert outcome(app, "payload.a:1", limit=limit) == "invalid_limit"
    names: list[Any] = ["payload", "order_id", "payload.a'b", "payload.a b", 'payload."a"', "payload.1", "payload.}"]
    names += ["payload." + "a." * 8 + "a", "payload.a;drop table job", "payload.é", "", None, 7, "payload.a\n"]
    for path in names:
        with pytest.raises(HoldfastError) as refused:
            app.jobs.add_payload_index(path)
        assert refused.value.code == "invalid_path", path
    with pytest.raises(NotFound, match="no index"):
        app.jobs.remove_payload_index("payload.a")
    for _ in range(2):
        app.jobs.add_payload_index("payload.a")
    assert app.jobs.payload_indexes() == ["payload.a"]
    assert [job.payload for job in app.jobs.search("payload.a:1").jobs] == [{"a": 1}]
    app.jobs.remove_payload_index("payload.a")
