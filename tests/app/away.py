"""A store that cannot be used for a while: each operation as often as a test says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.stores.flow import Flow
from tests.support.operations import name_of


class Away:
    """Puts itself between a worker and its store, and fails the named operations for as many times as it is told.

    Those in ``deaf`` are done, and the answer is lost.
    """

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: Counter[str] = Counter()
        self.deaf: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self._arun, self._run = app._store.arun, app._store.run
        monkeypatch.setattr(app._store, "arun", self.arun)
        monkeypatch.setattr(app._store, "run", self.run)

    def _refuse(self, flow: Flow[Any]) -> None:
        name, _ = name_of(flow)
        if self.left[name] > 0:
            self.left[name] -= 1
            self.met[name] += 1
            raise StoreUnavailable("the database cannot be reached")

    async def arun(self, flow: Flow[Any]) -> Any:
        self._refuse(flow)
        answer = await self._arun(flow)
        name, _ = name_of(flow)
        if self.deaf[name] > 0:
            self.deaf[name] -= 1
            self.met[name] += 1
            raise StoreUnavailable("the answer was lost")
        return answer

    def run(self, flow: Flow[Any]) -> Any:
        self._refuse(flow)
        return self._run(flow)
