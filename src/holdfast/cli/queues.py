"""``holdfast queues list | age``: queues in which waiting counts."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import emit, line, say
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import duration, span
from holdfast.features.limits.operations import Queues

commands = Commands("How queues are kept: whether waiting counts in them.")


@commands.add("list", "holdfast queues list")
def list_queues(session: AnyTenant) -> None:
    """List the queues that have settings of their own."""
    with session.connect() as client:
        found = Queues(client).list()
    session.print_list(
        found,
        {
            "queue": lambda each: line(each.queue),
            "tenant": lambda each: line(each.tenant),
            "ages every": lambda each: span(each.aging),
            "by": lambda each: str(each.aging_step),
            "up to": lambda each: str(each.aging_most),
        },
        none="No queue has settings of its own.",
        keep=("queue", "ages every"),
    )


@commands.add(
    "age",
    "holdfast queues age reports --every 10m --most 20",
    "holdfast queues age reports --never",
)
def age(
    session: AnyTenant,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="How long a job waits for each step: 10m.")
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="No more; what was raised stays so.")] = False,
    step: Annotated[int, typer.Option("--step", metavar="N", min=1, max=32_767, help="By how much.")] = 1,
    most: Annotated[int, typer.Option("--most", metavar="N", min=-32_768, max=32_767, help="Up to where.")] = 100,
) -> None:
    """Raise the priority of jobs the longer they wait in a queue."""
    if (every is None) != never:
        raise typer.BadParameter("say how often with --every, or --never")
    with session.connect() as client:
        span_of = None if every is None else duration(every, "--every")
        found = Queues(client).age(queue, every=span_of, step=step, most=most)
    if session.as_json:
        emit(found)
    else:
        say(
            f"Jobs in {queue} keep their priority."
            if found is None
            else f"Jobs in {queue} age every {span(found.aging)}."
        )
