"""Fixtures of the fault tests: real databases, processes and signals. Afterwards the checker reads the database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.features.assembly import Store, open_store
from tests.faults.tiny_disk import mounted
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.worker_processes import Crew


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The app of the test process. Afterwards every ledger is replayed, counters included."""
    with closing(App(url, name="tests", enqueued_by="tester")) as app:
        yield app
    with closing(open_store(url)) as store:
        check_ledger(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the handlers' effects and the workers' logs."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def crew(url: str, folder: Path) -> Iterator[Crew]:
    """Workers with a lease of one second, the shortest that a busy machine can renew in time."""
    with Crew(url, folder, lease=1.0) as crew:
        yield crew


@pytest.fixture(scope="module")
def case_results(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    postgres_databases: TemplateDatabases,
) -> Iterator[dict[object, Future[None]]]:
    """The result of each selected `case` of the module. A case mostly waits for a lease to expire, so
    `CONCURRENT_CASES` of them run at once, each by the module's function `run_case` on its own database."""
    base = tmp_path_factory.mktemp("cases")  # the factory is not thread-safe

    def run(name: str, case: object) -> None:
        folder = base / name
        folder.mkdir()
        with ExitStack() as stack:
            if name.startswith("postgres"):
                url = stack.enter_context(postgres_databases.fresh())
            else:
                url = f"sqlite:///{shutil.copyfile(sqlite_template, folder / 'jobs.db')}"
            app = stack.enter_context(closing(App(url, name="tests", enqueued_by="tester")))
            request.module.run_case(app, folder, case)
            check_ledger(session_of(app).store)

    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = {spec.id: spec.params["case"] for spec in specs if spec is not None and "case" in spec.params}
    # A first database creates the template before the threads need it.
    with postgres_databases.fresh(), ThreadPoolExecutor(request.module.CONCURRENT_CASES) as pool:
        yield {case: pool.submit(run, name, case) for name, case in chosen.items()}


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A file system of 8 MB, most of it used; skips the test where none can be mounted."""
    with mounted() as disk:
        yield disk
