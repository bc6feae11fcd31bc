"""How a declared kind is called: from a claim to the handler's result, wherever the handler runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

from holdfast import config
from holdfast.app.hooked import hooked
from holdfast.app.process_handlers import Process, process_caller, recipe_for
from holdfast.context import AnyContext, Context, LazyContext, SyncContext, enter
from holdfast.engine.bound_results import filled
from holdfast.engine.hooks import AppHooks
from holdfast.engine.job import DEFAULT_RETRY, Claim
from holdfast.engine.outcome import Settled, Stopped, Succeeded
from holdfast.engine.payload import look_at
from holdfast.engine.redaction import JobRedactor, Redactor
from holdfast.engine.retry import as_policy
from holdfast.engine.steps import RESERVED
from holdfast.engine.units import in_bytes
from holdfast.errors import Conflict, HoldfastError
from holdfast.features.attempts.model import LOG_LIMIT
from holdfast.features.connectors.command_runner import Program, command_caller
from holdfast.features.payloads.model import HIDDEN, Effective
from holdfast.features.registry.model import TEXT_LIMIT
from holdfast.features.workflows.run import BoundResults
from holdfast.kind import Kind, Prepared
from holdfast.steps.approvals import Asking
from holdfast.steps.driver import Durable, Plan, StepTools
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.transaction import RESULT_LIMIT, Completion, Stage
from holdfast.stores.flow import in_thread
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.worker.executor import Handler, PayloadRuleCache, pack_result
from holdfast.worker.log_writer import LogWriter
from holdfast.worker.processes.pool import Children
from holdfast.worker.shutdown import Stop
from holdfast.worker.threads import Threads
from holdfast.worker.writers import ProgressWriter

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], Prepared[Any]]

RunMode = Process | Program

SHOWN_LIMIT = 32_768


@dataclass(frozen=True, slots=True)
class HandlerTools:
    """What a worker has to run handlers with."""

    client: Session
    threads: Threads
    children: Children
    schema: str
    prepare: Prepare
    lent: StepTools
    redact: Redactor = field(default_factory=Redactor)
    rules: PayloadRuleCache = field(default_factory=PayloadRuleCache)
    hooks: AppHooks = field(default_factory=AppHooks)
    log_writer: LogWriter | None = None

    def handlers(self, kinds: Mapping[str, Declared]) -> dict[str, Handler]:
        return {name: declared.handler(self) for name, declared in kinds.items()}

    async def aclose(self) -> None:
        """When the last handler has ended, or was handed back."""
        await self.lent.recorder.aclose()
        if self.log_writer is not None:
            await self.log_writer.aclose()
        await self.children.aclose()


@dataclass(frozen=True, slots=True)
class Declared:
    """A kind and how it is to be run: by a function in the worker, unless ``way`` says otherwise."""

    kind: Kind[..., Any]
    timeout: float | None = None
    way: RunMode | None = None
    cost: float | None = None

    @property
    def description(self) -> str | None:
        """The first line of the handler's docstring, for the registry of kinds."""
        lines = (inspect.getdoc(self.kind.function) or "").splitlines()
        return lines[0][:TEXT_LIMIT] if lines else None

    def handler(self, means: HandlerTools) -> Handler:
        """What runs in a process of its own keeps its timeout itself: it counts from when the process is ready."""
        kind = self.kind
        retry = as_policy(kind.defaults.get("retry", DEFAULT_RETRY))
        timeout = None
        match self.way:
            case None:
                call, timeout = _caller(kind, means), self.timeout
            case Process() as options:
                recipe = recipe_for(means.client, means.schema, options, means.lent.notify())
                call = _elsewhere(process_caller(kind, options, self.timeout, means.children, recipe))
            case Program() as program:
                call = _elsewhere(command_caller(kind, program, self.timeout, means.client, means.children))
            case _:
                assert_never(self.way)
        return Handler(
            *(kind.name, _approved(call, kind, means), timeout, retry, kind._at_most_once, means.redact, self.cost),
            *(means.client.vault, means.rules, chain_of(means.client), kind._rule),
            bind=binder(means.client),
            end_hooks=means.hooks.of_ends(kind.name, means.client.acting_for),
        )


def log_writer_for(client: Session) -> LogWriter | None:
    """What keeps the log lines of handlers; None where the environment says that none are kept."""
    said = config.job_log_limit()
    limit = LOG_LIMIT if said is None else in_bytes(said, config.JOB_LOG_LIMIT_VARIABLE, least=0)
    return LogWriter(client.store, client.scope, client.vault, limit) if limit else None


Call = Callable[[Claim, Stop], Awaitable[str | Succeeded | Settled | None]]


def _elsewhere(call: Callable[[Claim], Awaitable[str | Settled | None]]) -> Call:
    """A process is killed when it is told to stop: there is nobody to tell."""
    return lambda claim, _: call(claim)


def chain_of(client: Session) -> Callable[[Claim], Awaitable[list[str]]]:
    async def before(claim: Claim) -> list[str]:
        return [
            job.id for job in await client.arun(client.store.jobs.chain(claim.id, claim.tenant)) if job.id != claim.id
        ]

    return before


def binder(client: Session) -> Callable[[Claim], Awaitable[Claim]]:
    """Puts results of the jobs before it into the payload of a workflow's job, in place of the marks of its plan."""

    async def bind(claim: Claim) -> Claim:
        store, opened = client.store, partial(client.vault.open_value, tenant=claim.tenant)
        found = [
            replace(each, value=await in_thread(opened, each.value, each.ref, job_id=each.job_id))
            for each in await client.arun(store.workflows.parent_results(claim.id, claim.tenant))
        ]
        failed = await client.arun(store.workflows.failure(claim.id, claim.tenant)) if not claim.workflow_id else None
        return replace(claim, payload=filled(claim.payload, BoundResults(found, failed)))

    return bind


def _approved(call: Call, kind: Kind[..., Any], means: HandlerTools) -> Call:
    """Ask before the handler is run at all, where the kind or the job's agent requires it. A job that is not approved
    never comes further than here."""
    asking = kind._approval

    async def with_approval(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        await ask_first(means, claim, asking, kind._rule, stop)
        return await call(claim, stop)

    def straight_on(claim: Claim, stop: Stop) -> Awaitable[str | Succeeded | Settled | None]:
        return call(claim, stop) if claim.agent is None else with_approval(claim, stop)  # nearly always there is none

    return straight_on if asking is None else with_approval


async def ask_first(means: HandlerTools, claim: Claim, asking: Asking | None, rule: Effective, stop: Stop) -> None:
    """Raises ``Suspended`` until people have approved, where the kind (``asking``) or the job's agent wants that."""
    if asking is None and await means.client.arun(means.client.store.steps.asks_first(claim.agent or "", claim.tenant)):
        asking = Asking()
    if asking is None:
        return
    restricted = means.rules.of(claim.tenant, claim.kind, rule).restricted
    redact = JobRedactor(means.redact, claim.payload, restricted)
    plan = Plan(Durable(claim, means.client, means.lent, redact, stop))
    whom = "" if claim.agent is None else f" for {claim.agent}"
    hidden = restricted or means.client.vault.keys is not None
    shown: Asking = {"data": {"payload": HIDDEN} if hidden else _shown(claim, means.redact)}
    await plan.before_all("run", f"Run {claim.kind}{whom} ({claim.id})", shown | asking)


def _shown(claim: Claim, redact: Redactor) -> dict[str, Any]:
    """What people see of a job they are to decide about: its payload, without what is called a secret."""
    payload = look_at(claim.payload)
    if len(claim.payload) > SHOWN_LIMIT or not isinstance(payload, dict):
        return {"payload": f"{len(claim.payload):,} characters; see holdfast jobs show {claim.id}"}
    return {"payload": {name: "***" if redact.looks_secret(name) else value for name, value in payload.items()}}


def _caller(kind: Kind[..., Any], means: HandlerTools) -> Call:
    """From a claim to the handler's result: bind the context, rebuild the arguments, call, encode."""
    logger = logging.getLogger(f"holdfast.job.{kind.name}")
    takes_context = wants_context(kind.function)
    is_async = inspect.iscoroutinefunction(kind.function)
    context_type: type[AnyContext] = Context if is_async else SyncContext
    halt: type[BaseException] = asyncio.CancelledError if is_async else Stopped

    write = partial(_write, means.client)
    vault, rules = means.client.vault, means.rules
    pack = partial(kind._signature.pack_result, limit=max(RESULT_LIMIT, vault.limit(kind._rule)))

    def context_of(claim: Claim, stop: Stop, loop: asyncio.AbstractEventLoop) -> AnyContext:
        rule = rules.of(claim.tenant, claim.kind, kind._rule)
        redact = JobRedactor(means.redact, claim.payload, rule.restricted)
        completion = Completion(pack, partial(_ended, vault, rule, claim))
        reporter = ProgressWriter(claim, write, loop=loop)
        return context_type(
            HandlerRun(
                *(claim, means.client, logger, stop, redact, reporter, means.prepare, completion, means.lent),
                loop=loop,
                halt=halt,
                log_writer=None if rule.restricted else means.log_writer,
            )
        )

    around = means.hooks.of_runs(kind.name)
    invoke = hooked(kind.function, around, means.threads, kind.name) if around else None
    # Looked up once, and not by every job.
    client, function, unpack = means.client, kind.function, kind._signature.unpack

    async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        unmade = LazyContext(context_of, claim, stop)
        enter(unmade, claim, client)
        args, kwargs = unpack(claim.payload)
        if takes_context:
            args = (unmade.made(), *args)
        try:
            if invoke is not None:
                value = await invoke(claim, args, kwargs)
            elif is_async:
                value = await function(*args, **kwargs)
            else:
                value = await means.threads.run(kind.name, partial(function, *args, **kwargs))
            if unmade.seen is not None:
                await unmade.seen._run.finish_steps()
        except BaseException as error:
            if unmade.seen is not None:
                if not isinstance(error, asyncio.CancelledError):
                    await unmade.seen._run.finish_steps()
                if await completed(unmade.seen._run, error):
                    return Settled()
            raise
        finally:
            stop.over()
            run = None if unmade.seen is None else unmade.seen._run
            if run is not None and isinstance(run.report, ProgressWriter) and run.report.used:
                await run.report.close()
            if run is not None and run.lines is not None:
                await run.lines.close()
        if run is None:
            return None if value is None else pack(value)
        if await completed(run):
            return Settled()
        run.check_returned()
        text = pack(value)
        return text if run.completion.ref is None else Succeeded(text, ref=run.completion.ref)

    return call


def _ended(vault: Vault, rule: Effective, claim: Claim, success: Succeeded) -> Succeeded:
    """The end of a job in a transaction of its handler, sealed or stored as any other."""
    if success.result is None or (vault.keys is None and rule.max_result_bytes is None and not rule.store):
        return success
    return pack_result(vault, rule, claim, success)


async def completed(run: HandlerRun, error: BaseException | None = None) -> bool:
    """Whether the handler's own transaction has ended the job already: nothing that came after changes that."""
    if run.completion.stage is Stage.NONE:
        return False
    try:
        done = await run.ending.concluded()
    except HoldfastError:
        if error is None:
            raise
        done = False  # if it was committed after all, the settlement of this failure will be refused
    if not done and run.completion.connection is not None:
        await run.ending.roll_back()
    if done and error is not None:
        run.log.error("Job %s has succeeded; its handler failed afterwards", run.claim.id, exc_info=error)
    if not done and error is None:
        raise Conflict(
            "the transaction that completes the job was not committed",
            code="not_committed",
            fix="Commit before the handler returns, or let the original error propagate.",
        )
    return done


async def _write(client: Session, claim: Claim, report: str) -> bool:
    save = client.store.steps.save_checkpoint
    return await client.arun(save(claim.id, claim.lease, claim.attempt, RESERVED, report, client.scope))


def wants_context(function: Callable[..., Any]) -> bool:
    """By annotation; a first parameter that is just called ``ctx`` counts as well."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        return first.name == "ctx"
    if isinstance(first.annotation, str):
        return first.annotation.split(".")[-1] in ("Context", "SyncContext")
    return first.annotation in (Context, SyncContext)
