"""Call the handlers of declared kinds: from a claim to the handler's result, in the worker or in a child process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, assert_never

from holdfast import config
from holdfast.app.approval_gate import check_decisions, require_approval
from holdfast.app.process_handlers import Process, process_caller, recipe_for
from holdfast.context import AnyContext, Context, LazyContext, SyncContext, enter
from holdfast.engine.bound_results import filled
from holdfast.engine.hooks import AppHooks, Around, RaisedError, RunInfo
from holdfast.engine.hooks import enter as enter_hook
from holdfast.engine.job import DEFAULT_RETRY, Claim
from holdfast.engine.outcome import Held, Outcome, Settled, Snooze, Snoozed, Stopped, Succeeded
from holdfast.engine.redaction import JobRedactor, Redactor
from holdfast.engine.requirement import Code
from holdfast.engine.retry import as_policy
from holdfast.engine.steps import RESERVED
from holdfast.engine.units import in_bytes
from holdfast.errors import Conflict, HoldfastError, StoreUnavailable
from holdfast.features.attempts.model import LOG_LIMIT
from holdfast.features.connectors.command_runner import Program, command_caller
from holdfast.features.payloads.model import Effective
from holdfast.features.registry.model import TEXT_LIMIT
from holdfast.features.workflows.run import BoundResults
from holdfast.kind import Kind, Prepared
from holdfast.steps.driver import StepTools
from holdfast.steps.handler_run import HandlerRun
from holdfast.steps.transaction import RESULT_LIMIT, Completion, Stage
from holdfast.stores.flow import in_thread
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.worker.executor import AFTER_OUTAGE, Handler, PayloadRuleCache, pack_result
from holdfast.worker.log_writer import LogWriter
from holdfast.worker.processes.pool import Children
from holdfast.worker.shutdown import Stop
from holdfast.worker.threads import Threads
from holdfast.worker.writers import ProgressWriter

Prepare = Callable[[Any, tuple[Any, ...], dict[str, Any]], Prepared[Any]]

RunMode = Process | Program

HOLD_FOR: Final = 7 * 86_400.0
"""Seconds for which a job is held whose steps do not fit the code."""
MOST_TRIED: Final = 100
"""Fingerprints that a held job keeps."""


@dataclass(frozen=True, slots=True)
class HandlerTools:
    """The resources with which a worker runs handlers. Close it."""

    client: Session
    threads: Threads
    children: Children
    schema: str
    prepare: Prepare
    step_tools: StepTools
    redact: Redactor = field(default_factory=Redactor)
    rules: PayloadRuleCache = field(default_factory=PayloadRuleCache)
    hooks: AppHooks = field(default_factory=AppHooks)
    log_writer: LogWriter | None = None
    code: Code | None = None
    """What this worker runs. None in a child process."""

    def handlers(self, kinds: Mapping[str, Declared]) -> dict[str, Handler]:
        return {name: declared.handler(self) for name, declared in kinds.items()}

    async def aclose(self) -> None:
        """Write what is buffered and end the child processes. Call it after the last handler has ended."""
        await self.step_tools.writer.aclose()
        if self.log_writer is not None:
            await self.log_writer.aclose()
        await self.children.aclose()


@dataclass(frozen=True, slots=True)
class Declared:
    """A kind and where it runs: in the worker, or as ``run_mode`` specifies."""

    kind: Kind[..., Any]
    timeout: float | None = None
    run_mode: RunMode | None = None
    cost: float | None = None
    domain: str | None = None
    pinned: bool = False
    """Whether its started jobs stay with the version of the application that started them."""
    hold_for: float = HOLD_FOR

    @property
    def description(self) -> str | None:
        """The first line of the handler's docstring, for the registry of kinds."""
        lines = (inspect.getdoc(self.kind.function) or "").splitlines()
        return lines[0][:TEXT_LIMIT] if lines else None

    @property
    def registered(self) -> tuple[str | None, str | None]:
        """Its description and domain, for the registry of kinds."""
        return self.description, self.domain

    def handler(self, tools: HandlerTools) -> Handler:
        """Return the handler that a worker calls.

        A handler in a separate process has no timeout here: its caller measures the time after the process is ready.
        """
        kind = self.kind
        retry = as_policy(kind.defaults.get("retry", DEFAULT_RETRY))
        timeout = None
        match self.run_mode:
            case None:
                call, timeout = _caller(kind, tools), self.timeout
            case Process() as options:
                recipe = recipe_for(tools.client, tools.schema, options, tools.step_tools.notify())
                call = _without_stop(process_caller(kind, options, self.timeout, tools.children, recipe))
            case Program() as program:
                command = command_caller(kind, program, self.timeout, tools.client, tools.children)

                async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
                    await check_decisions(tools, claim)
                    return await command(claim)
            case _:
                assert_never(self.run_mode)
        return Handler(
            kind.name,
            _after_approval(call, kind, tools),
            timeout,
            retry,
            kind._at_most_once,
            tools.redact,
            self.cost,
            tools.client.vault,
            tools.rules,
            chain_of(tools.client),
            kind._rule,
            bind=result_binder(tools.client),
            hold=None if tools.code is None else holder(tools.client, tools.code, self.hold_for),
            end_hooks=tools.hooks.of_ends(kind.name, tools.client.acting_for),
        )


def log_writer_for(client: Session) -> LogWriter | None:
    """Return the writer of the handlers' log lines; None if ``HOLDFAST_JOB_LOG_LIMIT`` is 0."""
    setting = config.job_log_limit()
    limit = LOG_LIMIT if setting is None else in_bytes(setting, config.JOB_LOG_LIMIT_VARIABLE, least=0)
    return LogWriter(client.store, client.scope, client.vault, limit) if limit else None


Call = Callable[[Claim, Stop], Awaitable[str | Succeeded | Settled | None]]


def _without_stop(call: Callable[[Claim], Awaitable[str | Settled | None]]) -> Call:
    """Ignore the stop request: a child process is killed instead of notified."""
    return lambda claim, _: call(claim)


def chain_of(client: Session) -> Callable[[Claim], Awaitable[list[str]]]:
    """Return a function that lists the other jobs of a chain of retries, for kinds whose retries are new jobs."""

    async def other_jobs(claim: Claim) -> list[str]:
        chain = await client.arun(client.store.jobs.chain(claim.id, claim.tenant))
        return [job.id for job in chain if job.id != claim.id]

    return other_jobs


def holder(client: Session, code: Code, limit: float) -> Callable[[Claim, Held], Awaitable[Outcome]]:
    """Return a function that decides what happens to a job whose steps do not fit this code. It is held, counted from
    the first time, and a dead letter when the limit is over."""

    async def hold(claim: Claim, held: Held) -> Outcome:
        try:
            now = await client.arun(client.store.clock.now())
            before = await client.arun(client.store.versions.mismatch(claim.id, claim.tenant))
        except StoreUnavailable:
            return Snoozed(random.uniform(*AFTER_OUTAGE), "its earlier mismatches cannot be read")
        since = now if before is None else before.since
        left = limit - (now - since).total_seconds()
        tried = [] if before is None else [each for each in before.tried if each != code.fingerprint]
        if code.fingerprint is not None:
            tried = [*tried, code.fingerprint][-MOST_TRIED:]
        return replace(held, delay=left if left > 0 else None, since=since.isoformat(), tried=tried)

    return hold


def result_binder(client: Session) -> Callable[[Claim], Awaitable[Claim]]:
    """Return a function that replaces the placeholders in a workflow job's payload with the results of its parents."""

    async def bind(claim: Claim) -> Claim:
        store, open_value = client.store, partial(client.vault.open_value, tenant=claim.tenant)
        results = [
            replace(parent, value=await in_thread(open_value, parent.value, parent.ref, job_id=parent.job_id))
            for parent in await client.arun(store.workflows.parent_results(claim.id, claim.tenant))
        ]
        failed = await client.arun(store.workflows.failure(claim.id, claim.tenant)) if not claim.workflow_id else None
        return replace(claim, payload=filled(claim.payload, BoundResults(results, failed)))

    return bind


def _after_approval(call: Call, kind: Kind[..., Any], tools: HandlerTools) -> Call:
    """Wait for approval before the handler runs, if the kind, a rule in the database or the job's agent requires it.
    The handler of a job that is not approved never runs."""
    options, rules = kind._approval, tools.rules

    async def with_approval(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        if rules.unknown:
            await _read_rules(tools)
        await require_approval(tools, claim, options, rules.of(claim.tenant, claim.kind, kind._rule), stop)
        return await call(claim, stop)

    def if_required(claim: Claim, stop: Stop) -> Awaitable[str | Succeeded | Settled | None]:
        # Few jobs have an agent, and few deployments have rules.
        if claim.agent is None and not (
            rules.any and (rules.unknown or rules.of(claim.tenant, claim.kind, kind._rule).requires_approval)
        ):
            return call(claim, stop)
        return with_approval(claim, stop)

    return if_required if options is None else with_approval


async def _read_rules(tools: HandlerTools) -> None:
    """Read the rules that could not be read when the worker started. Until then a job waits: one may require an
    approval."""
    client = tools.client
    try:
        tools.rules.load(await client.arun(client.store.payload_rules.list(client.scope)))
    except HoldfastError as error:
        raise Snooze(random.uniform(*AFTER_OUTAGE), f"the rules of its kind cannot be read: {error.code}") from error


def _caller(kind: Kind[..., Any], tools: HandlerTools) -> Call:
    """Return a function that binds the context, decodes the arguments, calls the handler and encodes its result."""
    logger = logging.getLogger(f"holdfast.job.{kind.name}")
    takes_context = wants_context(kind.function)
    is_async = inspect.iscoroutinefunction(kind.function)
    context_type: type[AnyContext] = Context if is_async else SyncContext
    halt: type[BaseException] = asyncio.CancelledError if is_async else Stopped

    write = partial(_write, tools.client)
    vault, rules = tools.client.vault, tools.rules
    pack = partial(kind._signature.pack_result, limit=max(RESULT_LIMIT, vault.limit(kind._rule)))

    def context_of(claim: Claim, stop: Stop, loop: asyncio.AbstractEventLoop) -> AnyContext:
        rule = rules.of(claim.tenant, claim.kind, kind._rule)
        redact = JobRedactor(tools.redact, claim.payload, rule.restricted)
        completion = Completion(pack, partial(_ended, vault, rule, claim))
        reporter = ProgressWriter(claim, write, loop=loop)
        return context_type(
            HandlerRun(
                *(claim, tools.client, logger, stop, redact, reporter, tools.prepare, completion, tools.step_tools),
                loop=loop,
                halt=halt,
                log_writer=None if rule.restricted else tools.log_writer,
            )
        )

    hooks = tools.hooks.of_runs(kind.name)
    invoke = hooked(kind.function, hooks, tools.threads, kind.name) if hooks else None
    # Local variables, because the lookups would cost time in every job.
    client, function, unpack = tools.client, kind.function, kind._signature.unpack

    async def call(claim: Claim, stop: Stop) -> str | Succeeded | Settled | None:
        lazy = LazyContext(context_of, claim, stop)
        enter(lazy, claim, client)
        if claim.attempt > 1 and claim.resumed:
            await lazy.get()._run.plan.durable.check_allowed()
        args, kwargs = unpack(claim.payload)
        if takes_context:
            args = (lazy.get(), *args)
        try:
            if invoke is not None:
                value = await invoke(claim, args, kwargs)
            elif is_async:
                value = await function(*args, **kwargs)
            else:
                value = await tools.threads.run(kind.name, partial(function, *args, **kwargs))
            if lazy.context is not None:
                await lazy.context._run.finish_steps()
        except BaseException as error:
            if lazy.context is not None:
                if not isinstance(error, asyncio.CancelledError):
                    await lazy.context._run.finish_steps()
                if await completed(lazy.context._run, error):
                    return Settled()
                if lazy.context._run.changed is not None:
                    raise lazy.context._run.changed from error
            raise
        finally:
            stop.over()
            run = None if lazy.context is None else lazy.context._run
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


# --- hooks ---

Invoke = Callable[[Claim, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


def hooked(function: Callable[..., Any], hooks: Sequence[Around], threads: Threads, kind: str) -> Invoke:
    """Return a function that calls the handler inside its hooks.

    The sync hooks of a sync handler run in the handler's thread, because connections are often bound to a thread. Its
    async hooks need the event loop, so they are outside all sync hooks.
    """
    on_loop = inspect.iscoroutinefunction(function)
    around = tuple(hook for hook in hooks if on_loop or hook.is_async)
    within = tuple(hook for hook in hooks if hook not in around)

    async def call(info: RunInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if on_loop:
            return await function(*args, **kwargs)
        blocking = partial(function, *args, **kwargs)
        return await threads.run(kind, partial(_run_inside, within, info, blocking) if within else blocking)

    async def invoke(claim: Claim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        info, kept, value = RunInfo.of(claim), RaisedError(), None
        async with AsyncExitStack() as stack:
            with kept:
                for hook in around:
                    await enter_hook(stack, hook, info)
                value = await call(info, args, kwargs)
        kept.check()
        return value

    return invoke


def _run_inside(hooks: Sequence[Around], info: RunInfo, function: Callable[[], Any]) -> Any:
    kept, value = RaisedError(), None
    with ExitStack() as stack, kept:
        for hook in hooks:
            stack.enter_context(hook.enter(info))
        value = function()
    kept.check()
    return value


# --- the end of a handler ---


def _ended(vault: Vault, rule: Effective, claim: Claim, success: Succeeded) -> Succeeded:
    """Encrypt or store the result of a job that its handler completes in a transaction."""
    if success.result is None or vault.keeps_results(rule):
        return success
    return pack_result(vault, rule, claim, success)


async def completed(run: HandlerRun, error: BaseException | None = None) -> bool:
    """Whether a transaction of the handler has completed the job. If so, nothing that happens later changes that."""
    if run.completion.stage is Stage.NONE:
        return False
    try:
        done = await run.ending.concluded()
    except HoldfastError:
        if error is None:
            raise
        done = False  # if it was committed after all, the store refuses the settlement of this failure
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
    """Whether the first parameter is annotated as a context, or is named ``ctx`` without annotation."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        return first.name == "ctx"
    if isinstance(first.annotation, str):
        return first.annotation.split(".")[-1] in ("Context", "SyncContext")
    return first.annotation in (Context, SyncContext)
