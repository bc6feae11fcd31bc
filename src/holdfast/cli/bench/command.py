"""``holdfast bench``: options in, figures out, and an honest word about the rows that stay."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli import options
from holdfast.cli.bench.judge import Rate
from holdfast.cli.bench.kinds import QUEUE
from holdfast.cli.bench.run import TRICKLE, Bench, Result
from holdfast.cli.bench.view import View, print_result
from holdfast.cli.demo.command import without_password
from holdfast.cli.failures import FAILED
from holdfast.cli.output import emit, say
from holdfast.cli.session import is_absent, refuse_unready
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidSetting, Refused
from holdfast.stores.base import Store
from holdfast.stores.requests import JobFilter
from holdfast.stores.sqlite.connections import database_path

JOBS, CONCURRENCY = 5_000, 50
SCRATCH = "On SQLite better name a file that is not there yet: it is removed afterwards."
STAYS = "Finished jobs and their ledger cannot be deleted by hand; they stay until a retention policy removes them."


def bench(
    url: options.Url = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=100, max=500_000, help="How many jobs.")] = JOBS,
    concurrency: options.Concurrency = CONCURRENCY,
    keep: Annotated[bool, typer.Option("--keep", help="Keep a SQLite file that the bench has made.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, even if there are other jobs.")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure your own database: enqueuing, draining, and how soon a waiting worker picks a job up.

    It keeps to a queue and a tenant of its own. The jobs do nothing, so this is the most there is. Each one is checked:
    begun once, and succeeded. The rows stay; a SQLite file that was not there before is removed.
    """
    tenant = f"holdfast-bench-{secrets.token_hex(4)}"
    with closing(App(config.database_url(url), tenant=tenant, name="holdfast bench")) as app:
        own = is_absent(app.store)
        if not own:
            refuse_unready(app.store)
            _ask(app.store, jobs, yes=yes)
        with _scratch(app.store, remove=own and not keep):
            app.client.make_ready()
            with View() as view:
                result = asyncio.run(Bench(app, view).run(jobs, concurrency))
    if as_json:
        emit(document(result, app, concurrency, removed=own and not keep))
    else:
        sys.stderr.flush()
        print_result(result, concurrency)
    _say_what_is_left(result, app, removed=own and not keep)
    if result.problems:
        raise typer.Exit(FAILED)


def document(result: Result, app: App, concurrency: int, *, removed: bool) -> dict[str, Any]:
    pickup = result.pickup
    return {
        "ok": not result.problems,
        "url": without_password(app.store.url),
        "tenant": app.client.tenant,
        "queue": QUEUE,
        "concurrency": concurrency,
        "enqueue_single": _rate(result.single),
        "enqueue_bulk": _rate(result.bulk),
        "drain": _rate(result.drain),
        "pickup": {
            "jobs": pickup.jobs,
            **{name: round(getattr(pickup, name) * 1000, 3) for name in ("p50", "p95", "p99")},
            "unit": "ms",
        },
        "left": {"jobs": 0, "events": 0} if removed else {"jobs": result.jobs, "events": result.events},
        "problems": result.problems,
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"jobs": rate.jobs, "seconds": round(rate.seconds, 4), "per_second": round(rate.per_second, 1)}


def _ask(store: Store, jobs: int, *, yes: bool) -> None:
    """Nobody should fill a database with other people's work in it by mistake."""
    if yes or not _holds_jobs(store):
        return
    what = f"This database holds other jobs. The bench would add {jobs + TRICKLE:,} and their ledger, which stay."
    if not sys.stdin.isatty():
        raise InvalidSetting(what, code="confirmation_required", fix=f"Add --yes if that is meant. {SCRATCH}")
    say(f"{what} {SCRATCH if store.embedded else ''}".rstrip())
    typer.confirm("Go on?", abort=True, err=True)


def _holds_jobs(store: Store) -> bool:
    try:
        return bool(store.run(store.verbs.list_jobs(JobFilter(tenant=EVERY_TENANT, limit=1))))
    except Refused:
        return True  # this role does not see the others' jobs; there may be some


@contextmanager
def _scratch(store: Store, *, remove: bool) -> Iterator[None]:
    try:
        yield
    finally:
        if remove:
            store.close()
            path = database_path(store.url)
            for beside in ("", "-wal", "-shm", "-checkpoint"):
                Path(path + beside).unlink(missing_ok=True)


def _say_what_is_left(result: Result, app: App, *, removed: bool) -> None:
    if removed:
        say("Nothing is left behind: the file was made for this and has been removed.")
        return
    say(f"Left behind: {result.jobs:,} jobs and {result.events:,} rows of their ledger, tenant {app.client.tenant}.")
    say(f"{STAYS} {SCRATCH if app.store.embedded else ''}".rstrip())
