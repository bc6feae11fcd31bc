"""Processes that only fire schedules, each as if it were the only one, while the test advances the store's clock."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from holdfast import App
from holdfast.errors import StoreUnavailable
from tests.support.forkserver import start_call
from tests.support.schedules import attend, set_time
from tests.support.waiting import until

STOP_FILE = "stop"


def new_app(url: str) -> App:
    """Make the app of every process: all declare and fire the same schedule."""
    app = App(url, name="clockwork", enqueued_by="tester")

    @app.schedule("every 1s", name="declared", missed="all")
    @app.job()
    def beat() -> None: ...

    return app


def _fire(url: str, folder: str) -> None:
    """Fire due schedules until the process is killed or the stop file exists."""
    with closing(new_app(url)) as app:
        while not (Path(folder) / STOP_FILE).exists():
            try:
                attend(app)
            except StoreUnavailable:
                continue


def start(url: str, folder: Path) -> ForkServerProcess:
    return start_call(_fire, url, str(folder))


def stop(process: ForkServerProcess) -> None:
    process.kill()
    process.join(10)


def advance_clock(app: App, moment: datetime, seconds: int) -> None:
    """Advance the clock second by second, each time after all schedules have handled the second before."""
    for second in range(1, seconds + 1):
        now = set_time(app, moment + timedelta(seconds=second))
        until(lambda now=now: _have_fired(app, now), f"second {second} is handled")  # type: ignore[misc]


def _have_fired(app: App, now: datetime) -> bool:
    schedules = app.schedules.list(state="active")
    return all(schedule.next_fire_at is not None and schedule.next_fire_at > now for schedule in schedules)
