"""How a declared kind is called: from a claim to the handler's result, wherever the handler runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.client import Client
from holdfast.context import Context, enter
from holdfast.domain.job import DEFAULT_RETRY, Claim
from holdfast.domain.progress import RESERVED
from holdfast.domain.redaction import JobRedactor, Redactor
from holdfast.kind import Kind, Prepared
from holdfast.runtime.execution import Handler
from holdfast.runtime.reporting import Reporter
from holdfast.runtime.stopping import Stop
from holdfast.runtime.threads import Threads

RESULT_LIMIT = 1_048_576

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], Prepared[Any]]


@dataclass(frozen=True, slots=True)
class Lent:
    """What a worker lends to every handler it runs."""

    client: Client
    threads: Threads
    prepare: Prepare
    redact: Redactor = field(default_factory=Redactor)


@dataclass(frozen=True, slots=True)
class Declared:
    """A kind and how it is to be run."""

    kind: Kind[..., Any]
    timeout: float | None = None

    def handler(self, lent: Lent) -> Handler:
        retry = self.kind.defaults.get("retry", DEFAULT_RETRY)
        call = _caller(self.kind, lent)
        return Handler(self.kind.name, call, self.timeout, retry, self.kind.at_most_once, lent.redact)


def _caller(kind: Kind[..., Any], lent: Lent) -> Callable[[Claim, Stop], Awaitable[str | None]]:
    """From a claim to the handler's result: bind the context, rebuild the arguments, call, encode."""
    logger = logging.getLogger(f"holdfast.job.{kind.name}")
    takes_context = wants_context(kind.function)
    is_async = inspect.iscoroutinefunction(kind.function)

    write = partial(_write, lent.client)

    async def call(claim: Claim, stop: Stop) -> str | None:
        reporter = Reporter(claim, write)
        redact = JobRedactor(lent.redact, claim.payload)
        context = Context(claim, lent.client, logger, stop, redact, reporter, lent.prepare)
        enter(context)
        args, kwargs = kind.signature.unpack(claim.payload)
        if takes_context:
            args = (context, *args)
        try:
            if is_async:
                value = await kind.function(*args, **kwargs)
            else:
                value = await lent.threads.run(kind.name, partial(kind.function, *args, **kwargs))
        finally:
            if reporter.used:
                await reporter.close()
        return kind.signature.pack_result(value, limit=RESULT_LIMIT)

    return call


async def _write(client: Client, claim: Claim, report: str) -> bool:
    save = client.verbs.save_checkpoint
    return await client.arun(save(claim.id, claim.lease, claim.attempt, RESERVED, report, client.tenant))


def wants_context(function: Callable[..., Any]) -> bool:
    """By annotation; a first parameter that is just called ``ctx`` counts as well."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        return first.name == "ctx"
    return first.annotation is Context or (
        isinstance(first.annotation, str) and first.annotation.split(".")[-1] == "Context"
    )
