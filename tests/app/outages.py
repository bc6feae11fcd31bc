"""A store whose operations fail as often as a test requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import StoreUnavailable
from holdfast.stores.flow import Flow
from tests.support.operations import name_of


class Outage:
    """Fails operations of an app's store: those in ``failing`` before they run, those in ``unanswered`` afterwards.

    Both map an operation name to the number of failures left; ``hits`` counts the failures so far.
    """

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: Counter[str] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self._arun, self._run = session_of(app).store.arun, session_of(app).store.run
        monkeypatch.setattr(session_of(app).store, "arun", self.arun)
        monkeypatch.setattr(session_of(app).store, "run", self.run)

    def _refuse(self, flow: Flow[Any]) -> None:
        name, _ = name_of(flow)
        if self.failing[name] > 0:
            self.failing[name] -= 1
            self.hits[name] += 1
            raise StoreUnavailable("the database cannot be reached")

    async def arun(self, flow: Flow[Any]) -> Any:
        self._refuse(flow)
        response = await self._arun(flow)
        name, _ = name_of(flow)
        if self.unanswered[name] > 0:
            self.unanswered[name] -= 1
            self.hits[name] += 1
            raise StoreUnavailable("the response was lost")
        return response

    def run(self, flow: Flow[Any]) -> Any:
        self._refuse(flow)
        return self._run(flow)
