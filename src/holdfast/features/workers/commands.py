"""``holdfast workers``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from holdfast.cli.output import line, moment
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.health.statistics import WorkerPulse
from holdfast.features.workers.operations import Workers

commands = Commands("List running workers, and ask one to drain or stop.")

WorkerId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The worker's id, or its first eight characters (see: holdfast workers list)."),
]


@commands.add("list", "holdfast workers list --all-tenants")
def list_workers(session: AnyTenant) -> None:
    """List running workers with their host, process, version, queues and running jobs."""
    with session.connect() as client:
        workers = Workers(client).list()
    session.print_list(
        workers,
        {
            "id": lambda worker: worker.id[:8] if worker.host else line(worker.id),
            "host": lambda worker: line(worker.host or ""),
            "pid": lambda worker: str(worker.pid or ""),
            "version": lambda worker: line(worker.version or ""),
            "queues": lambda worker: "any" if worker.queues is None else line(", ".join(worker.queues)),
            "running": lambda worker: f"{worker.busy}" + ("" if worker.slots is None else f" of {worker.slots}"),
            "last heartbeat": lambda worker: moment(worker.renewed_at),
            "started": lambda worker: moment(worker.opened_at),
            "requested": lambda worker: worker.stop_request or "",
        },
        none="No worker is running. Start one: holdfast worker MODULE:APP",
        keep=("id", "running"),
        described=_as_dict,
    )


@commands.add("drain", "holdfast workers drain 01a2b3c4 --all-tenants")
def drain(session: AnyTenant, worker: WorkerId) -> None:
    """Ask a worker to claim no more jobs and to exit when its running jobs have finished."""
    with session.connect() as client:
        result = Workers(client).drain(worker)
    session.answer(_as_dict(result), f"Worker {result.id} drains: it reads the request with its next heartbeat.")


@commands.add("stop", "holdfast workers stop 01a2b3c4 --all-tenants")
def stop(session: AnyTenant, worker: WorkerId) -> None:
    """Ask a worker to exit as after SIGTERM. Jobs that outlast its grace period are released to the queue."""
    with session.connect() as client:
        result = Workers(client).stop(worker)
    session.answer(_as_dict(result), f"Worker {result.id} stops: it reads the request with its next heartbeat.")


def _as_dict(worker: WorkerPulse) -> dict[str, Any]:
    return {"id": worker.id, "host": worker.host, "pid": worker.pid} | asdict(worker)
