"""``holdfast queues list | age``: queues in which waiting counts."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, line, say, table
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration, span
from holdfast.features.queues import Queues


def list_queues(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the queues that have settings of their own."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        found = Queues(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("No queue has settings of its own.")
    else:
        rows: list[list[Cell]] = [
            [line(each.queue), line(each.tenant), span(each.aging), str(each.aging_step), str(each.aging_most)]
            for each in found
        ]
        table(["queue", "tenant", "ages every", "by", "up to"], rows, keep=("queue", "ages every"))


def age(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="How long a job waits for each step: 10m.")
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="No more; what was raised stays so.")] = False,
    step: Annotated[int, typer.Option("--step", metavar="N", min=1, max=32_767, help="By how much.")] = 1,
    most: Annotated[int, typer.Option("--most", metavar="N", min=-32_768, max=32_767, help="Up to where.")] = 100,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Raise the priority of jobs the longer they wait in a queue."""
    if (every is None) != never:
        raise typer.BadParameter("say how often with --every, or --never")
    with connect(url, scope(tenant, all_tenants), schema) as client:
        span_of = None if every is None else duration(every, "--every")
        found = Queues(client).age(queue, every=span_of, step=step, most=most)
    if as_json:
        emit(found)
    else:
        say(
            f"Jobs in {queue} keep their priority."
            if found is None
            else f"Jobs in {queue} age every {span(found.aging)}."
        )
