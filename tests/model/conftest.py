"""Fresh stores for every example: copies of a file and of a database that were migrated once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.model.player import Player
from tests.support.postgres_databases import TemplateDatabases

Make = Callable[[ExitStack], dict[str, Player]]


@pytest.fixture
def make(tmp_path: Path, sqlite_template: Path, postgres_databases: TemplateDatabases) -> Make:
    numbers = itertools.count()

    def fresh(closing: ExitStack) -> dict[str, Player]:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copyfile(sqlite_template, path)
        embedded = Player(f"sqlite:///{path}")
        closing.callback(lambda: embedded.store.close())
        served = Player(closing.enter_context(postgres_databases.fresh()))
        closing.callback(lambda: served.store.close())
        for side in (embedded, served):
            # The model takes jobs in queue order; turns of tenants have a model of their own (contract/test_fair.py).
            side.store.run(side.store.tenants.set_fair([], "the model"))
        return {"sqlite": embedded, "postgres": served}

    return fresh
