"""Fault tests: real databases, real processes, real signals; afterwards the checker reads everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import App
from holdfast.features.assembly import open_store
from tests.faults.tiny_disk import mounted
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.worker_processes import Crew


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The program that enqueues and looks on. Afterwards every ledger is replayed, counters included."""
    with closing(App(url, name="tests", enqueued_by="tester")) as app:
        yield app
    with closing(open_store(url)) as store:
        check_ledger(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where handlers leave their effects and workers their logs."""
    made = tmp_path / "marks"
    made.mkdir()
    return made


@pytest.fixture
def crew(url: str, folder: Path) -> Iterator[Crew]:
    """A lease of one second, and a sweep as often: the smallest that a busy machine can keep."""
    with Crew(url, folder, lease=1.0) as crew:
        yield crew


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    postgres_databases: TemplateDatabases,
) -> Iterator[dict[object, Future[None]]]:
    """The end of each `case` of the module that was chosen for this run. A case is mostly waiting for a lease to lapse,
    so its function `play` plays several at a time (`AT_A_TIME`), each on a database of its own."""
    base = tmp_path_factory.mktemp("cases")  # here: the factory is not for several threads

    def one(name: str, case: object) -> None:
        folder = base / name
        folder.mkdir()
        with ExitStack() as stack:
            if name.startswith("postgres"):
                url = stack.enter_context(postgres_databases.fresh())
            else:
                url = f"sqlite:///{shutil.copyfile(sqlite_template, folder / 'jobs.db')}"
            app = stack.enter_context(closing(App(url, name="tests", enqueued_by="tester")))
            request.module.play(app, folder, case)
            check_ledger(app._store)

    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = {spec.id: spec.params["case"] for spec in specs if spec is not None and "case" in spec.params}
    with postgres_databases.fresh(), ThreadPoolExecutor(request.module.AT_A_TIME) as pool:  # first the template
        yield {case: pool.submit(one, name, case) for name, case in chosen.items()}


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A file system of 8 MB, most of it taken; skipped where none can be mounted."""
    with mounted() as disk:
        yield disk
