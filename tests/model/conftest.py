"""Fresh stores for every example: a new file, and a copy of the migrated template database."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.model.player import Player
from tests.support.databases import TemplateDatabases

Make = Callable[[ExitStack], dict[str, Player]]


@pytest.fixture
def make(tmp_path: Path, postgres_databases: TemplateDatabases) -> Make:
    numbers = itertools.count()

    def fresh(closing: ExitStack) -> dict[str, Player]:
        embedded = Player(f"sqlite:///{tmp_path}/{next(numbers)}.db")
        closing.callback(lambda: embedded.store.close())
        embedded.store.migrate()
        served = Player(closing.enter_context(postgres_databases.fresh()))
        closing.callback(lambda: served.store.close())
        return {"sqlite": embedded, "postgres": served}

    return fresh
