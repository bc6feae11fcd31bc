"""How a declared kind is called: from a claim to the handler's result, wherever the handler runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from holdfast.client import Client
from holdfast.connectors.command import Program, command_caller
from holdfast.context import Context, enter
from holdfast.domain.job import Claim
from holdfast.kind import Kind
from holdfast.processes import ProcessOptions, process_caller, recipe_for
from holdfast.runtime.children.pool import Children
from holdfast.runtime.execution import Handler

RESULT_LIMIT = 1_048_576


Way = ProcessOptions | Program


@dataclass(frozen=True, slots=True)
class Means:
    """What a worker has to run handlers with."""

    client: Client
    threads: Executor
    children: Children = field(default_factory=lambda: Children(1))
    schema: str = "holdfast"


@dataclass(frozen=True, slots=True)
class Declared:
    """A kind and how it is to be run: by a function in the worker, unless ``way`` says otherwise."""

    kind: Kind[..., Any]
    timeout: float | None = None
    way: Way | None = None

    def handler(self, means: Means) -> Handler:
        """What runs in a process of its own keeps its timeout itself: it counts from when the process is ready."""
        kind = self.kind
        match self.way:
            case None:
                return Handler(kind.name, _caller(kind, means.client, means.threads), self.timeout)
            case ProcessOptions() as options:
                recipe = recipe_for(means.client, means.schema, options)
                return Handler(kind.name, process_caller(kind, options, self.timeout, means.children, recipe))
            case Program() as program:
                return Handler(kind.name, command_caller(kind, program, self.timeout, means.client, means.children))
            case _:
                assert_never(self.way)


def _caller(kind: Kind[..., Any], client: Client, threads: Executor) -> Callable[[Claim], Awaitable[str | None]]:
    """From a claim to the handler's result: bind the context, rebuild the arguments, call, encode."""
    log = logging.getLogger(f"holdfast.job.{kind.name}")
    takes_context = wants_context(kind.function)
    is_async = inspect.iscoroutinefunction(kind.function)

    async def call(claim: Claim) -> str | None:
        context = Context(claim, client, log)
        enter(context)
        args, kwargs = kind.signature.unpack(claim.payload)
        if takes_context:
            args = (context, *args)
        if is_async:
            value = await kind.function(*args, **kwargs)
        else:
            work = partial(copy_context().run, _in_thread, kind.function, args, kwargs)
            value = await asyncio.get_running_loop().run_in_executor(threads, work)
        return kind.signature.pack_result(value, limit=RESULT_LIMIT)

    return call


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # A future cannot carry one out of a thread: the job would never end.
        raise RuntimeError("the handler raised StopIteration") from error


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
