"""Fresh stores for every example: copies of a file and of a database that are migrated once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.model.store_driver import StoreDriver
from tests.support.postgres_databases import TemplateDatabases

MakeStores = Callable[[ExitStack], dict[str, StoreDriver]]


@pytest.fixture
def make_stores(tmp_path: Path, sqlite_template: Path, postgres_databases: TemplateDatabases) -> MakeStores:
    numbers = itertools.count()

    def fresh(closing: ExitStack) -> dict[str, StoreDriver]:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copyfile(sqlite_template, path)
        sqlite = StoreDriver(f"sqlite:///{path}")
        closing.callback(lambda: sqlite.store.close())
        postgres = StoreDriver(closing.enter_context(postgres_databases.fresh()))
        closing.callback(lambda: postgres.store.close())
        for driver in (sqlite, postgres):
            # The model claims in queue order; fairness between tenants has its own model (contract/test_fair.py).
            driver.store.run(driver.store.tenants.set_fair([], "the model"))
        return {"sqlite": sqlite, "postgres": postgres}

    return fresh
