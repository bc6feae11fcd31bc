"""Whatever is passed to a public function, what it raises is one of our errors, with a code (docs/reference/errors.md).

The functions are found by looking at what is public, so that one that is added later is tried as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import App, HoldfastError, webhooks

pytestmark = pytest.mark.req("DP-3", "JF-5")

WRONG: tuple[Any, ...] = (1, None, object(), [1], [None], {"a": 1}, b"x", 1.5)
# What runs, waits, declares or opens something: not a call with data.
APART = {"close", "aclose", "run_worker", "worker", "tick", "job", "command", "report", "redact", "on"}
APART |= {"schedule", "wait", "result", "repository", "hold", "transaction"}
APART |= {"check_options", "firm"}  # of a kind, for the parts of the app that enqueue


@pytest.fixture
def app() -> Iterator[App]:
    app = App("sqlite:///:memory:", name="tests", enqueued_by="tester")

    @app.job("work")
    async def work(n: int = 1) -> None: ...

    yield app
    app.close()


def subjects(app: App) -> Iterator[tuple[str, Any]]:
    """Everything that a program gets hold of."""
    yield "webhooks", webhooks
    yield "app", app
    yield "handle", app.enqueue("work", {"n": 1})
    yield "kind", app._kinds["work"].kind
    for name in public(app):
        found = getattr(app, name, None)
        if type(found).__module__.startswith("holdfast.features"):
            yield f"app.{name}", found


def public(one: Any) -> list[str]:
    return list(one.__all__) if inspect.ismodule(one) else [name for name in dir(one) if name[0] != "_"]


def calls(function: Any, wrong: Any, job_id: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """With something wrong for all that must be given, then for each that may be."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    positional = [p for p in needed if p.kind is not p.KEYWORD_ONLY]
    named = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    yield [wrong for _ in positional], dict.fromkeys(named, wrong)
    fine = [job_id if p.name == "job_id" else "work" for p in positional if p.kind is not p.VAR_POSITIONAL]
    for each in parameters:
        if each.default is not each.empty:
            yield fine, {**dict.fromkeys(named, "x"), each.name: wrong}


def test_what_is_wrong_is_said_by_an_error_of_ours(app: App) -> None:
    tried = 0
    surprises: list[str] = []
    job_id = app.enqueue("work").id
    for owner, one in subjects(app):
        for name in public(one):
            function = getattr(one, name)
            twin = name.startswith("a") and hasattr(one, name[1:])
            if name in APART or twin or not callable(function) or inspect.isclass(function):
                continue
            for wrong in WRONG:
                for args, kwargs in calls(function, wrong, job_id):
                    tried += 1
                    try:
                        answer = function(*args, **kwargs)
                        if inspect.isgenerator(answer):
                            next(answer, None)
                        if inspect.iscoroutine(answer):
                            answer.close()
                    except HoldfastError:
                        continue
                    except Exception as error:
                        surprises.append(f"{owner}.{name}{args}{kwargs}: {error!r}")
    assert surprises == []
    assert tried > 1_000


def test_the_two_of_the_review(app: App) -> None:
    with pytest.raises(HoldfastError, match="prepared calls") as refused:
        app.enqueue_many([1])  # type: ignore[arg-type]
    assert refused.value.code == "invalid_input"
    with pytest.raises(HoldfastError) as refused:
        webhooks.verify({}, b"", None)  # type: ignore[arg-type]
    assert refused.value.code == "webhook_secret"
