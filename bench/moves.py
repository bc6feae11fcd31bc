"""How fast a database is moved: `python -m bench.moves [JOBS]`, from SQLite to a PostgreSQL server of the tests."""

from __future__ import annotations

import resource
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from holdfast.features.assembly import open_store
from holdfast.features.moves.operations import mover
from tests.support.postgres_server import PostgresServer
from tests.support.stores import claim, open_lease, put, settle, spec

BATCH = 1_000


def make(url: str, jobs: int) -> None:
    """A database with finished jobs."""
    with closing(open_store(url)) as store:
        store.migrate()
        lease = open_lease(store, ttl=3_600.0)
        for start in range(0, jobs, BATCH):
            put(store, *(spec(payload={"number": start + n}) for n in range(BATCH)))
            settle(store, claim(store, lease, BATCH))


def main(jobs: int = 100_000) -> None:
    server = PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = f"sqlite:///{Path(folder)}/jobs.db", server.create_database("moved")
            make(source, jobs)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with mover(source, target) as moving:
                result = moving.run()
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{result.copied:,} rows of {jobs:,} jobs in {result.copy_seconds:.1f} s:")
        print(f"{jobs / result.copy_seconds:,.0f} jobs/s, {result.copied / result.copy_seconds:,.0f} rows/s")
        print(f"writers refused for {result.refused_seconds:.2f} s; {grown / 1024:.0f} MB more memory")
    finally:
        server.destroy()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
