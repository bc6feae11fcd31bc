"""Databases in which jobs wait at different places of their way, and one worker that does them all over a line on which
there is trouble once, at whichever request."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from holdfast import App, Retry, State
from holdfast.engine.states import FINISHED
from holdfast.features.assembly import open_store
from tests.faults.checker import check
from tests.faults.effects import effects, runs
from tests.faults.journey import RESULT
from tests.faults.load import AT_ONCE
from tests.faults.waiting import counts
from tests.support.ledger import check_ledger
from tests.support.proxy import Fate, Proxy
from tests.support.stores import put, spec
from tests.support.waiting import until
from tests.support.worker_processes import Crew

BROKEN = ("Traceback", "never retrieved", "was destroyed but it is pending", "never awaited")
ONCE = Retry(max_attempts=1, max_crashes=100)

Cut = tuple[int, Fate]


class Line(Protocol):
    """What is between a worker and its database."""

    url: str
    settings: dict[str, Any]
    """With which a worker is started to be on it."""

    @property
    def asked(self) -> int:
        """How many requests there were."""
        ...

    def trouble(self, what: Any, seconds: float, /) -> None: ...
    def over(self) -> None:
        """There is no trouble to come, nor any that lasts."""
        ...


class OverAProxy(Proxy):
    settings: dict[str, Any] = {}  # noqa: RUF012 - there are none

    def trouble(self, what: Cut, seconds: float) -> None:
        self.cut_nth(*what, seconds)

    def over(self) -> None:
        self.cut_none()


class Fresh(Protocol):
    """Databases that were prepared once: each is a copy."""

    def fresh(self) -> AbstractContextManager[str]: ...
    def close(self) -> None: ...


class Workplace:
    """What a line is told as ``trouble`` begins with a number and a fate. It lasts ``silence`` seconds, if it does."""

    def __init__(
        self,
        databases: Callable[[Callable[[str], None]], Fresh],
        folder: Path,
        line: Callable[[str, Path], AbstractContextManager[Line]] = lambda url, _: OverAProxy(url),
        silence: float = 2.5,  # longer than a lease of a second and its sweep
    ) -> None:
        self._folder = folder
        self._line = line
        self._silence = silence
        self.ids: dict[str, str] = {}
        self._databases = databases(self._prepare)

    def close(self) -> None:
        self._databases.close()

    def _prepare(self, url: str) -> None:
        """One job was told that it may go on, another has been sent what it waited for, and the rest are new."""
        with closing(App(url, name="tests", enqueued_by="tester")) as app:
            app._store.migrate()
            self.ids = {kind: _put(app, kind, pause=0.01) for kind in ("journey", "journey_in_a_thread")}
            last = self.ids["journey_in_a_thread"]
            with Crew(url, self._folder, lease=30.0) as crew:
                crew.start_one()
                until(lambda: len(app.approvals.list()) == 2, "both ask")
                (approval,) = app.approvals.list(job_id=last)
                app.approvals.approve(approval.id, by="ada")
                until(lambda: _waits_for_event(app, last), "one waits for its event")
            for approval in app.approvals.list():
                app.approvals.approve(approval.id, by="ada")
            app.send_event("shipped", {"job": last, "what": "parcel 7"})
            self.ids |= {kind: _put(app, kind) for kind in ("work", "awork", "flaky", "save", "walk", "ahold")}
            self.ids |= {"spawn": _put(app, "spawn", number=1), "shout": _put(app, "shout", ONCE, text="no")}

    def through(self, trouble: tuple[Any, ...] | None, *, leaving: bool = False) -> int:
        """All of it is done by one worker, whose line is in trouble: from its beginning on, or only when it is to
        leave. Answers how many requests that took."""
        with self._databases.fresh() as url, TemporaryDirectory() as made:
            folder = Path(made)
            shutil.copy(self._folder / "effects", folder)
            with (
                self._line(url, folder) as line,
                Crew(line.url, folder, lease=1.0, concurrency=16, **line.settings) as crew,
            ):
                asked = self._work(url, line, crew, trouble, leaving)
                said = crew.said()
                ends = crew.members[-1].wait()
                # It may be killed as it leaves, or never come to its statement.
                assert ends == 0 or (ends == -9 and _kills(trouble) and len(crew.members) == 1), said
            assert not any(word in said for word in BROKEN), said
            self._check(url, folder)
            return asked

    def _work(self, url: str, line: Line, crew: Crew, trouble: tuple[Any, ...] | None, leaving: bool) -> int:
        with closing(App(url, name="tests", enqueued_by="tester")) as app:
            if trouble is not None and not leaving:
                line.trouble(trouble, self._silence)
            crew.start_one(options=("--poll", "500ms"))
            for does, what in (
                (lambda: self.ids["ahold"] in runs(crew.folder), "it is at the one to be cancelled"),
                (lambda: app.jobs.cancel(self.ids["ahold"]), "that is cancelled"),
                (lambda: self._helped_along(app), "all have ended"),
                (lambda: effects(crew.folder, "stopped") or len(crew.members) > 1, "it has let go of that one"),
            ):
                self._wait(does, what, crew, _kills(trouble))
            before = line.asked
            if trouble is not None and leaving:
                line.trouble(trouble, self._silence)
            crew.members[-1].ask_to_stop()
            crew.members[-1].wait()
            return line.asked - before if leaving else before

    def _wait(self, does: Callable[[], object], what: str, crew: Crew, mortal: bool) -> None:
        """If the worker is to be killed, another comes."""

        def done() -> object:
            if crew.members[-1].alive:
                return does()
            if mortal and len(crew.members) == 1:
                crew.start_one(options=("--poll", "500ms"))
                return False
            return True

        try:
            until(done, what)
            assert crew.alive or (mortal and len(crew.members) == 1), f"it has ended before {what}"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{crew.said()}") from None

    def _helped_along(self, app: App) -> bool:
        if _waits_for_event(app, self.ids["journey"]):
            app.send_event("shipped", {"job": self.ids["journey"], "what": "parcel 7"})
        found = counts(app)
        return sum(found.values()) == len(self.ids) + 1 == sum(found.get(state, 0) for state in FINISHED)

    def _check(self, url: str, folder: Path) -> None:
        with closing(open_store(url)) as store:
            check_ledger(store)
            results = {kind: store.run(store.jobs.result(job, "*")) for kind, job in self.ids.items()}
        with closing(App(url)) as app:
            (child,) = {job.id for job in app.jobs.list(kind="work")} - {self.ids["work"]}
        picture = check(url, {*self.ids.values(), child}, folder=folder)
        ends = {kind: picture.rows[job].state for kind, job in self.ids.items()}
        assert ends.pop("ahold") is State.CANCELLED
        assert ends.pop("shout") is State.DEAD_LETTER
        assert set(ends.values()) == {State.SUCCEEDED}, ends
        for kind in ("journey", "journey_in_a_thread"):
            assert (result := results[kind]) is not None
            assert result.value == RESULT


def _kills(trouble: tuple[Any, ...] | None) -> bool:
    return trouble is not None and trouble[1] == "killed"


def _put(app: App, kind: str, retry: Retry = AT_ONCE, **payload: object) -> str:
    return put(app._store, spec(kind, payload=payload, retry=retry))[0]


def _waits_for_event(app: App, job: str) -> bool:
    steps = app._store.run(app._store.steps.list(job, "*"))
    return bool(steps) and steps[-1].kind == "event" and not steps[-1].over
