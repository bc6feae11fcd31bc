"""Public functions raise a HoldfastError with a code for any argument (docs/reference/errors.md).

The functions are discovered, so that new ones are covered too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, HoldfastError, webhooks
from holdfast.app.internals import kinds_of

pytestmark = pytest.mark.req("DP-3", "JF-5")

WRONG: tuple[Any, ...] = (1, None, object(), [1], [None], {"a": 1}, b"x", 1.5)
# Functions that run, wait, declare or open something are not calls with data.
EXCLUDED = {"close", "aclose", "run_worker", "worker", "tick", "job", "command", "report", "redact", "on"}
EXCLUDED |= {"schedule", "wait", "result", "repository", "hold", "transaction"}
EXCLUDED |= {"check_options", "firm"}  # of a kind, used by other parts of the app


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.chdir(tmp_path)  # some of the functions write files
    app = App("sqlite:///:memory:", name="tests", enqueued_by="tester")

    @app.job("work")
    async def work(n: int = 1) -> None: ...

    yield app
    app.close()


def subjects(app: App) -> Iterator[tuple[str, Any]]:
    """Everything a program can call."""
    yield "webhooks", webhooks
    yield "app", app
    yield "handle", app.enqueue("work", {"n": 1})
    yield "kind", kinds_of(app)["work"].kind
    for name in public(app):
        value = getattr(app, name, None)
        if type(value).__module__.startswith("holdfast.features"):
            yield f"app.{name}", value


def public(one: Any) -> list[str]:
    return list(one.__all__) if inspect.ismodule(one) else [name for name in dir(one) if name[0] != "_"]


def calls(function: Any, wrong: Any, job_id: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Wrong values for all required parameters, then for each optional one."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    positional = [p for p in needed if p.kind is not p.KEYWORD_ONLY]
    named = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    yield [wrong for _ in positional], dict.fromkeys(named, wrong)
    fine = [job_id if p.name == "job_id" else "work" for p in positional if p.kind is not p.VAR_POSITIONAL]
    for each in parameters:
        if each.default is not each.empty:
            yield fine, {**dict.fromkeys(named, "x"), each.name: wrong}


def test_wrong_arguments_raise_a_holdfast_error(app: App) -> None:
    tried = 0
    surprises: list[str] = []
    job_id = app.enqueue("work").id
    for owner, one in subjects(app):
        for name in public(one):
            function = getattr(one, name)
            twin = name.startswith("a") and hasattr(one, name[1:])
            if name in EXCLUDED or twin or not callable(function) or inspect.isclass(function):
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


def test_enqueue_many_and_verify_reject_wrong_types(app: App) -> None:
    with pytest.raises(HoldfastError, match="prepared calls") as refused:
        app.enqueue_many([1])  # type: ignore[arg-type]
    assert refused.value.code == "invalid_input"
    with pytest.raises(HoldfastError) as refused:
        webhooks.verify({}, b"", None)  # type: ignore[arg-type]
    assert refused.value.code == "webhook_secret"
