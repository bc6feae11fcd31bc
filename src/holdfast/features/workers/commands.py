"""``holdfast workers``."""

from __future__ import annotations

from holdfast.cli.derived import derive
from holdfast.cli.output import line, moment
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.health.statistics import WorkerStatus
from holdfast.features.workers.operations import Workers

commands = Commands("List running workers, and ask one to drain or stop.")


@derive(commands, "list", AnyTenant, Workers.list, "holdfast workers list --all-tenants")
def list_workers(session: AnyTenant, result: list[WorkerStatus]) -> None:
    session.print_list(
        result,
        {
            "id": lambda worker: worker.id[:8] if worker.host else line(worker.id),
            "host": lambda worker: line(worker.host or ""),
            "pid": lambda worker: str(worker.pid or ""),
            "app": lambda worker: line(worker.app_version or ""),
            "holdfast": lambda worker: line(worker.version or ""),
            "queues": lambda worker: "any" if worker.queues is None else line(", ".join(worker.queues)),
            "running": lambda worker: f"{worker.busy}" + ("" if worker.slots is None else f" of {worker.slots}"),
            "last heartbeat": lambda worker: moment(worker.renewed_at),
            "started": lambda worker: moment(worker.opened_at),
            "requested": lambda worker: worker.stop_request or "",
        },
        none="No worker is running. Start one: holdfast worker MODULE:APP",
        keep=("id", "running"),
    )


@derive(commands, "drain", AnyTenant, Workers.drain, "holdfast workers drain 01a2b3c4 --all-tenants")
def drain(session: AnyTenant, result: WorkerStatus) -> None:
    session.answer(result, f"Worker {result.id} drains: it reads the request with its next heartbeat.")


@derive(commands, "stop", AnyTenant, Workers.stop, "holdfast workers stop 01a2b3c4 --all-tenants")
def stop(session: AnyTenant, result: WorkerStatus) -> None:
    session.answer(result, f"Worker {result.id} stops: it reads the request with its next heartbeat.")
