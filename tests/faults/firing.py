"""Processes that do nothing but fire schedules, each as if it were alone, while the test moves the store's clock."""

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

ENOUGH = "enough"


def new_app(url: str) -> App:
    """The program of every process here: the same code, so that each of them declares and fires the same."""
    app = App(url, name="clockwork", enqueued_by="tester")

    @app.schedule("every 1s", name="declared", missed="all")
    @app.job()
    def beat() -> None: ...

    return app


def _fire(url: str, folder: str) -> None:
    """Look again and again until killed or told to stop. Every process believes that firing is its task."""
    with closing(new_app(url)) as app:
        (Path(folder) / f"began-{app._session.tenant}").touch()
        while not (Path(folder) / ENOUGH).exists():
            try:
                attend(app)
            except StoreUnavailable:
                continue


def start(url: str, folder: Path) -> ForkServerProcess:
    return start_call(_fire, url, str(folder))


def stop(process: ForkServerProcess) -> None:
    process.kill()
    process.join(10)


def pass_by(app: App, moment: datetime, seconds: int) -> None:
    """Let so many seconds pass, one at a time, each when all schedules have dealt with the one before."""
    for second in range(1, seconds + 1):
        now = set_time(app, moment + timedelta(seconds=second))
        until(lambda now=now: _dealt_with(app, now), f"second {second} was dealt with")  # type: ignore[misc]


def _dealt_with(app: App, now: datetime) -> bool:
    return all(read.next_fire_at is not None and read.next_fire_at > now for read in app.schedules.list(state="active"))
