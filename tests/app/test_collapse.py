"""Options of calls with one key that become one job, and what becomes of the superseded ones."""

from __future__ import annotations

import pytest

from holdfast import App, SyncContext
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from tests.support.workers import work_off


@pytest.mark.req("HF-12")
def test_job_with_recorded_steps_is_not_superseded(app: App) -> None:
    @app.job(name="stepped")
    def stepped(ctx: SyncContext, n: int) -> None:
        ctx.step("one", lambda: n)
        ctx.sleep("later", "1h")

    joined = stepped.using(dedupe="replace", key="k")
    first = joined.enqueue(1)
    work_off(app)
    assert joined.enqueue(2).created
    assert first.state() == State.RETRY_WAITING


@pytest.mark.req("HF-12")
def test_options_are_checked(app: App) -> None:
    @app.job(name="joined")
    def joined(n: int) -> None: ...

    for options, code in (
        ({"debounce": "5s"}, "key_missing"),
        ({"dedupe": "replace"}, "key_missing"),
        ({"throttle": "5s", "dedupe": "skip", "key": "k"}, "conflicting_options"),
        ({"debounce": "5s", "delay": "5s", "key": "k"}, "conflicting_options"),
        ({"debounce": "5s", "longest_wait": "1s", "key": "k"}, "conflicting_options"),
        ({"wins": "first", "key": "k"}, "conflicting_options"),
        ({"debounce": "5s", "wins": "none", "key": "k"}, "invalid_dedupe"),
    ):
        with pytest.raises(InvalidSetting) as refused:
            joined.using(**options).enqueue(1)  # type: ignore[arg-type]
        assert refused.value.code == code
    debounced = joined.using(debounce="1h", key="k")
    first, second = debounced.enqueue(1), debounced.enqueue(2)
    assert (first.state(), second.state()) == (State.CANCELLED, State.QUEUED)
    assert any(f"superseded by job {second.id}" in reason.says for reason in first.why().reasons)
