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
from holdfast.domain.errors import Conflict, HoldfastError
from holdfast.domain.job import DEFAULT_RETRY, Claim
from holdfast.domain.outcome import Settled
from holdfast.domain.progress import RESERVED
from holdfast.domain.redaction import JobRedactor, Redactor
from holdfast.kind import Kind, Prepared
from holdfast.runtime.execution import Handler
from holdfast.runtime.reporting import Reporter
from holdfast.runtime.stopping import Stop
from holdfast.runtime.threads import Threads
from holdfast.transaction import RESULT_LIMIT, Completion, Stage

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


def _caller(kind: Kind[..., Any], lent: Lent) -> Callable[[Claim, Stop], Awaitable[str | Settled | None]]:
    """From a claim to the handler's result: bind the context, rebuild the arguments, call, encode."""
    logger = logging.getLogger(f"holdfast.job.{kind.name}")
    takes_context = wants_context(kind.function)
    is_async = inspect.iscoroutinefunction(kind.function)

    write = partial(_write, lent.client)
    pack = partial(kind.signature.pack_result, limit=RESULT_LIMIT)

    async def call(claim: Claim, stop: Stop) -> str | Settled | None:
        reporter = Reporter(claim, write)
        redact = JobRedactor(lent.redact, claim.payload)
        context = Context(claim, lent.client, logger, stop, redact, reporter, lent.prepare, Completion(pack))
        enter(context)
        args, kwargs = kind.signature.unpack(claim.payload)
        if takes_context:
            args = (context, *args)
        try:
            if is_async:
                value = await kind.function(*args, **kwargs)
            else:
                value = await lent.threads.run(kind.name, partial(kind.function, *args, **kwargs))
        except BaseException as error:
            if await completed(context, error):
                return Settled()
            raise
        finally:
            if reporter.used:
                await reporter.close()
        if await completed(context):
            return Settled()
        return pack(value)

    return call


async def completed(context: Context, error: BaseException | None = None) -> bool:
    """Whether the handler's own transaction has ended the job already: nothing that came after changes that."""
    if context.completion.stage is Stage.NONE:
        return False
    try:
        done = await context.ending.concluded()
    except HoldfastError:
        if error is None:
            raise
        done = False  # if it was committed after all, the settlement of this failure will be refused
    if done and error is not None:
        context.log.error("job %s has succeeded; its handler failed afterwards", context.job_id, exc_info=error)
    if not done and error is None:
        raise Conflict(
            "the transaction that was to end the job was not committed",
            code="not_committed",
            fix="Commit before the handler returns, or let the error that prevented it out.",
        )
    return done


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
