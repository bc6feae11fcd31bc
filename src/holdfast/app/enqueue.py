"""Make jobs of kinds, one by one or in bulk. While the store writes one batch of many, the next is prepared."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from threading import Semaphore
from typing import Any, Final, TypeVar

from holdfast.app.handlers import Declared
from holdfast.engine.hints import check_options
from holdfast.engine.job import AlikeSpecs, Enqueued, JobSpec
from holdfast.engine.names import NamedKind, check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import as_stored_policy
from holdfast.errors import InvalidArguments, InvalidInput, InvalidSetting
from holdfast.features.connectors.http_request import REQUEST
from holdfast.features.connectors.report import GENERATE
from holdfast.features.jobs.handle import Handle
from holdfast.features.payloads.model import NO_RULE, Effective, combined
from holdfast.features.webhooks.model import DELIVER
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared, make_spec, pack_payload
from holdfast.stores.flow import Flow, Steps
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session

R = TypeVar("R")

_OPTIONS = frozenset(Options.__annotations__)
_KIND = re.compile(r"[\w.:/@+-]+")
"""What the name of a kind in another program looks like: not like a handler's return value."""
ALIASES: Final = {f"connector.{name}": name for name in (DELIVER, REQUEST, GENERATE)}
"""Other names of the built-in kinds. A job that is enqueued by such a name gets the kind's own name."""

BATCH = 2_000
# The transaction stays open while the caller's iterable yields calls, which may take long.
TRANSACTION_TIMEOUT = 3600.0


class JobMaker:
    """The kinds of an app, and the jobs that are made of them: by a kind or by its name, for ``enqueue``, schedules,
    templates, workflows and ``ctx.spawn``. ``declared`` are the kinds of the program, ``all`` has the built-in ones
    too."""

    def __init__(self, session: Session, built_in: Mapping[str, Declared]) -> None:
        self._session = session
        self.declared: dict[str, Declared] = {}
        self.all: Mapping[str, Declared] = ChainMap(self.declared, dict(built_in))

    def prepare(self, kind: str | NamedKind, payload: Any, options: Any, more: tuple[Any, ...] = ()) -> Prepared[Any]:
        name = check_name(kind, "kind")
        if name not in self.declared:
            name = ALIASES.get(name, name)
        if more:
            raise InvalidArguments(f"{name}: expected one payload, got {len(more) + 1}", fix=self._by_name(name))
        if not options.keys() <= _OPTIONS:
            if payload is None and options.keys() - _OPTIONS <= set(self._parameters(name)):
                raise InvalidArguments(f"{name}: arguments passed as options", fix=self._by_name(name))
            check_options(options, _OPTIONS, fix=self._by_name(name) if payload is None else "")
        declared = self.all.get(name)
        text, rule = self.payload(name, payload)
        decode: Callable[[Any], Any] = _unchanged
        retry_given = "retry" in options
        if declared is not None:
            decode = declared.kind._signature.unpack_result
            declared.kind._check_options(options)
            options = {**declared.kind.defaults, **options}
            retry_given = declared.kind._overrides_agent_retry(retry_given)
        elif retry_given:
            as_stored_policy(options["retry"])
        spec, tenant = make_spec(name, text, options, self._session, retry_given)
        pack_payload(spec, tenant, rule, self._session.vault)
        return Prepared(spec, tenant, decode, options.get("connection"))

    def payload(self, kind: str, payload: Any, rule: Effective = NO_RULE) -> tuple[str, Effective]:
        """Return the payload as JSON text, and ``rule`` combined with the rule that the code declares for the kind.

        If the kind is declared here, the payload is checked against the handler's signature.
        """
        declared, values = self.all.get(kind), {} if payload is None else payload
        if declared is None:
            return encode(values, limit=max(PAYLOAD_LIMIT, self._session.vault.limit(rule))), rule
        if not isinstance(values, Mapping):
            raise InvalidArguments(
                f"{kind}: the payload must be an object with the arguments by name, got {type(values).__name__}",
                fix=self._by_name(kind),
            )
        rule = combined(declared.kind._rule, rule)
        limit = max(PAYLOAD_LIMIT, self._session.vault.limit(rule))
        return declared.kind._signature.pack((), values, limit=limit), rule

    def _parameters(self, kind: str) -> tuple[str, ...]:
        declared = self.all.get(kind)
        return () if declared is None else declared.kind.parameters

    def _by_name(self, kind: str) -> str:
        """How to pass arguments to a kind that is given by its name."""
        names = ", ".join(f'"{name}": …' for name in self._parameters(kind) or ("x",))
        return f'Pass the arguments as one dict: app.enqueue("{kind}", {{{names}}}).'

    def spec(self, kind: str, payload: Any, options: dict[str, Any]) -> JobSpec:
        return self.prepare(kind, payload, options).spec

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Check a part of a job's arguments, for a template."""
        declared = self.all.get(kind)
        if declared is not None:
            declared.kind._signature.check_some(payload)

    def handle(self, answers: Sequence[Enqueued], prepared: Prepared[Any]) -> Handle[Any]:
        return prepared.accepted(answers, self._session)

    def child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        """Prepare a job for ``ctx.spawn`` and workflows: from a kind and arguments, or from a name and a payload."""
        if isinstance(kind, Kind):
            return kind.using(**options).prepare(*args)
        if len(args) > 1:
            raise InvalidSetting("a job spawned by name takes one payload", code="conflicting_options")
        if isinstance(kind, str) and kind not in self.all and not _KIND.fullmatch(kind):
            raise InvalidSetting(
                f"{kind[:60]!r} is not the name of a kind",
                code="invalid_name",
                fix="Pass the kind and its arguments without calling it: wf.add(fetch, 1), not wf.add(fetch(1)).",
            )
        return self.prepare(kind, args[0] if args else None, options)


def _unchanged(value: Any) -> Any:
    return value


# --- many jobs ---


def enqueue_many(client: Session, calls: Iterable[Prepared[R]], connection: object | None = None) -> list[Handle[R]]:
    """Store all jobs of a tenant in one transaction, or none. The handles are in the order of the calls."""
    rest = _checked(calls)
    first = list(islice(rest, BATCH))
    if _caller_connection(first, connection) is not None:
        first += rest
        borrowed = _caller_connection(first, connection)
        results = {tenant: iter(client.enqueue(specs, tenant, borrowed)) for tenant, specs in _by_tenant(first).items()}
        return _handles(client, first, results)
    hooked = client.hooks.wraps_enqueue  # hooks see all jobs of a call at once
    # A store with a pipeline depth of 1 works in this process: preparing the next batch meanwhile gains nothing.
    if len(first) < BATCH or client.store.pipeline_depth == 1 or hooked:
        return _in_one_batch(client, [*first, *rest])
    return _in_batches(client, first, rest)


async def aenqueue_many(
    client: Session, calls: Iterable[Prepared[R]], connection: object | None = None
) -> list[Handle[R]]:
    checked = list(_checked(calls))
    borrowed = _caller_connection(checked, connection)
    groups = _by_tenant(checked).items()
    results = {tenant: iter(await client.aenqueue(specs, tenant, borrowed)) for tenant, specs in groups}
    return _handles(client, checked, results)


def _checked(calls: Iterable[Prepared[R]]) -> Iterator[Prepared[R]]:
    """Yield the calls; raise ``InvalidInput`` for one that is not prepared."""
    if not isinstance(calls, Iterable):
        raise _not_prepared(calls)
    for call in calls:
        if not isinstance(call, Prepared):
            raise _not_prepared(call)
        yield call


def _not_prepared(value: object) -> InvalidInput:
    return InvalidInput(
        f"enqueue_many expects prepared calls, got {type(value).__name__}",
        code="invalid_input",
        fix="For example app.enqueue_many(send.prepare(n) for n in range(10)).",
    )


def _in_one_batch(client: Session, calls: Sequence[Prepared[R]]) -> list[Handle[R]]:
    _caller_connection(calls, None, refuse=True)
    return _handles(client, calls, _add(client, calls))


def _add(client: Session, calls: Sequence[Prepared[Any]]) -> dict[str, Iterator[Enqueued]]:
    return {tenant: iter(client.enqueue(specs, tenant)) for tenant, specs in _by_tenant(calls).items()}


def _by_tenant(calls: Sequence[Prepared[Any]]) -> dict[str, list[JobSpec]]:
    groups: dict[str, list[JobSpec]] = {}
    for call in calls:
        groups.setdefault(call.tenant, []).append(call.spec)
    return groups


def _handles(client: Session, calls: Sequence[Prepared[R]], results: dict[str, Iterator[Enqueued]]) -> list[Handle[R]]:
    return [call.handle(next(results[call.tenant]), client) for call in calls]


def _caller_connection(
    calls: Sequence[Prepared[Any]], connection: object | None, *, refuse: bool = False
) -> object | None:
    """Return the caller's connection that the calls use, or None. Raises ``InvalidSetting`` if they use several.

    With ``refuse``, raise for any: earlier calls have been sent on a connection of the store.
    """
    for call in calls:
        if call.connection is not None and call.connection is not connection:
            if connection is not None or refuse:
                raise InvalidSetting("the prepared calls use more than one connection", code="conflicting_options")
            connection = call.connection
    return connection


def _in_batches(client: Session, first: list[Prepared[R]], rest: Iterator[Prepared[R]]) -> list[Handle[R]]:
    """Feed batches into one transaction, which another thread runs. Jobs of other tenants follow in transactions of
    their own."""
    tenant = first[0].tenant
    feed = _Feed()
    calls, others = list[Prepared[R] | Handle[R]](), list[Prepared[R]]()
    with ThreadPoolExecutor(1, "holdfast-bulk") as executor:
        client.make_ready()
        transaction = executor.submit(client.run, _transaction(client, feed, tenant))
        transaction.add_done_callback(feed.close)
        batch = first
        try:
            while batch and not transaction.done():  # it ends before the last batch only if it failed
                _caller_connection(batch, None, refuse=True)
                alike = _alike(batch, tenant)
                if alike is not None:
                    feed.put(alike)
                    pairs = zip(alike.ids, batch, strict=True)
                    calls += [Handle(id, tenant, True, None, client, call.decode) for id, call in pairs]
                else:
                    calls += batch
                    others += [call for call in batch if call.tenant != tenant]
                    feed.put([call.spec for call in batch if call.tenant == tenant])
                batch = list(islice(rest, BATCH))
        except BaseException as error:
            feed.put(error)  # rolls back the batches that were sent
            raise
        feed.put(None)
        results = {tenant: iter(transaction.result())}
    results |= _add(client, others)
    return [call if isinstance(call, Handle) else call.handle(next(results[call.tenant]), client) for call in calls]


def _alike(batch: Sequence[Prepared[Any]], tenant: str) -> AlikeSpecs | None:
    """The jobs of a batch, if they differ only in their payloads and the store creates all or none of them. Then their
    handles are known at once, and neither the calls nor their specs live until the end of the transaction: collecting
    a million objects again and again took a third of the time of a bulk enqueue (docs/adr/0050)."""
    shared = batch[0].shared
    if shared is None or shared["alike"] is None or shared["agent"] is not None:
        return None
    if any(call.shared is not shared or call.made or call.id or call.tenant != tenant for call in batch):
        return None
    ids = new_id.many(len(batch))
    for call, id in zip(batch, ids, strict=True):
        call.id = id
    if [call.id for call in batch] != ids:  # one call twice
        return None
    return AlikeSpecs(shared, ids, [call.payload for call in batch])


class _Feed:
    """A queue of batches that can be iterated over again from the start, for a transaction that is retried.

    None ends the iteration; an exception is raised by it. The queue holds one batch, so that the caller soon blocks: if
    it went on preparing, the thread that sends would wait for the interpreter, and the server for both.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Sequence[JobSpec] | BaseException | None] = SimpleQueue()
        self._taken: list[Sequence[JobSpec]] = []
        self._free = Semaphore()

    def put(self, batch: Sequence[JobSpec] | BaseException | None) -> None:
        self._free.acquire()
        self._queue.put(batch)

    def close(self, _transaction: Future[Any]) -> None:
        """Nothing takes batches any more: nobody may wait for that."""
        self._free.release(2)

    def __iter__(self) -> Iterator[Sequence[JobSpec]]:
        yield from list(self._taken)
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, BaseException):
                self._queue.put(batch)
                raise batch
            self._free.release()
            self._taken.append(batch)
            yield batch
        self._queue.put(None)


def _transaction(client: Session, feed: _Feed, tenant: str) -> Flow[list[Enqueued]]:
    def steps() -> Steps[list[Enqueued]]:
        results: list[Enqueued] = []
        for batch in feed:
            if batch:
                enqueued = yield from client.store.jobs.enqueue(batch, tenant).start()
                results += [] if isinstance(batch, AlikeSpecs) else enqueued
        return results

    return Flow(steps, response_timeout=TRANSACTION_TIMEOUT)
