"""Operations of ``app.jobs`` on a job that runs: send it messages, read its answers, values and output streams."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.engine.declared import Help, http
from holdfast.engine.ids import parse_id
from holdfast.engine.messages import DATA_LIMIT, Published, answered_as, check_message, published_as
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import MARK, decode, encode
from holdfast.errors import Refused
from holdfast.features.jobs.store import not_found
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.streams.model import (
    PAGE_BYTES,
    PAGE_PARTS,
    Chunk,
    StoredPart,
    StreamPage,
    check_stream,
    chunks_of,
    position,
)
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace, call
from holdfast.stores.requests import JobId, SendEvent, SendMessage, SentResult, Tenant, new_id
from holdfast.stores.vault import Vault

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

MessageName = Annotated[str, Help("The name of the message, which the handler receives it by.", "NAME", longest=90)]
MessageId = Annotated[str, Help("The id of the message.", "MESSAGE", longest=100)]
ValueName = Annotated[str, Help("The name of the value.", "NAME", longest=90)]
StreamName = Annotated[str, Help("The name of the stream.", "NAME", longest=90)]
Data = Annotated[Any, Help("The contents of the message, any JSON.", "JSON", argument=True)]
_Values = list[Published]
_Names = list[str]


def deliver(
    store: Store, sending: SendEvent | SendMessage, actor: str, tenant: str, connection: object | None
) -> Program[SentResult]:
    """Send an event or a message, by itself or in the transaction that is open on the caller's connection."""
    if connection is None:
        if isinstance(sending, SendMessage):
            return (yield from run(store.messages.send(sending, actor, tenant)))
        return (yield from run(store.ledger.send(sending, actor, tenant)))
    borrowed = store.on_connection
    flow = (
        borrowed.message(sending, actor, tenant)
        if isinstance(sending, SendMessage)
        else borrowed.send(sending, actor, tenant)
    )
    return (
        yield from call(
            partial(store.run_on_connection, connection, flow), partial(store.arun_on_connection, connection, flow)
        )
    )


class JobMessages(StoreNamespace):
    """The part of ``app.jobs`` for jobs that run."""

    @operation
    @http(
        "POST /jobs/{job_id}/messages",
        "enqueue",
        tenant="one",
        name="send_message",
        status=201,
        example={"name": "approve", "data": {"limit": 100}, "key": "request-7"},
    )
    def send(
        self,
        job_id: JobId,
        name: MessageName,
        data: Data = None,
        *,
        key: Annotated[str | None, Help("Idempotency key: sending it again creates no second message.")] = None,
        ask: Annotated[bool, Help("The sender waits for an answer.", cli=False)] = False,
        tenant: Tenant = None,
        connection: Annotated[object | None, Help("Your own connection.", http=False, cli=False)] = None,
    ) -> Program[SentResult]:
        """Send a message to a job. Its handler receives it with ``ctx.receive``, in order, each once.

        It is kept until the handler receives it or the job is cleaned. ``Conflict`` if the job has ended. With your own
        ``connection`` it is sent if your transaction commits.
        """
        text = encode(data, limit=DATA_LIMIT, what=f"data of message {name}")
        checked_key = None if key is None else check_name(key, "key")
        message = SendMessage(new_id(), parse_id(job_id), check_message(name), text, bool(ask), checked_key)
        return (yield from deliver(self._store, message, self._actor, tenant or self._tenant, connection))

    asend = awaited(send)

    @operation
    @http("GET /jobs/{job_id}/messages/{message_id}/answer", "read", name="job_answer", large=True)
    def answer(self, job_id: JobId, message_id: MessageId, *, tenant: Tenant = None) -> Program[Published | None]:
        """Show the answer to a message, or null while there is none: ``{"value": …}``, or ``{"refused": "why"}``."""
        step = answered_as(message_id)
        return (yield from published(self._store, job_id, step, tenant or self._tenant))

    aanswer = awaited(answer)

    @operation
    @http("GET /jobs/{job_id}/values/{name}", "read", name="job_value", large=True)
    def value(self, job_id: JobId, name: ValueName, *, tenant: Tenant = None) -> Program[Published | None]:
        """Show the value that the handler has published last under this name, or null. Sealed values are not opened."""
        return (yield from published(self._store, job_id, published_as(name), tenant or self._tenant))

    avalue = awaited(value)

    @operation
    @http("GET /jobs/{job_id}/values", "read", name="job_values", large=True)
    def values(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Values]:
        """List the values that the handler has published, the last one of each name. Sealed values are not opened."""
        found = yield from run(self._store.steps.published(job_id, None, tenant or self._tenant))
        last = {each.name: each for each in found}
        hidden = yield from _is_hidden(self._store, job_id, tenant or self._tenant)
        return [_shown(last[name], hidden) for name in sorted(last)]

    avalues = awaited(values)

    @operation
    @http("GET /jobs/{job_id}/streams", "read", name="job_streams", result="streams")
    def streams(self, job_id: JobId, *, tenant: Tenant = None) -> Program[_Names]:
        """List the names of the output streams that the handler has written."""
        return (yield from run(self._store.streams.names(job_id, tenant or self._tenant)))

    astreams = awaited(streams)

    @operation
    @http("GET /jobs/{job_id}/streams/{name}", "read", name="read_stream", large=True)
    def stream(
        self,
        job_id: JobId,
        name: StreamName,
        *,
        after: Annotated[str | None, Help("Position: the id of the last chunk that you have.", "CURSOR")] = None,
        tenant: Tenant = None,
    ) -> Program[StreamPage]:
        """Read the next chunks of an output stream, up to about 1 MB. Sealed chunks are not opened.

        Continue after ``next``. ``handle.stream(name)`` follows a stream until the job has ended.
        """
        scope = tenant or self._tenant
        hidden = yield from _is_hidden(self._store, job_id, scope)
        return (yield from stream_page(self._store, job_id, name, after, scope, vault=None, hidden=hidden))

    astream = awaited(stream)


def published(
    store: Store, job_id: str, step: str, tenant: str, vault: Vault | None = None
) -> Program[Published | None]:
    """The last value that a step of this name has recorded: hidden for a restricted kind; with a ``vault``, for a
    program that waits for it, as it was."""
    found = yield from run(store.steps.published(job_id, step, tenant))
    if vault is None:
        hidden = yield from _is_hidden(store, job_id, tenant)
        return _shown(found[-1], hidden) if found else None
    if not found:
        return None
    last = found[-1]
    bound = {"tenant": tenant, "job_id": parse_id(job_id), "place": str(last.n)}
    return replace(last, value=(yield from call(partial(vault.open_part, last.value, what="step", **bound))))


def stream_page(
    store: Store, job_id: str, name: str, after: str | None, tenant: str, *, vault: Vault | None, hidden: bool = False
) -> Program[StreamPage]:
    """The next chunks of a stream; without a ``vault``, sealed ones are refused."""
    cursor = position(after)
    read = yield from run(store.streams.read(job_id, check_stream(name), cursor, tenant))
    if read is None:
        raise not_found(parse_id(job_id), tenant)
    state, parts = read

    def opened() -> list[Chunk]:
        chunks = []
        for part in parts:
            values = [HIDDEN] * part.count if hidden else _values_of(part, vault, tenant, parse_id(job_id))
            chunks += chunks_of(part, values, cursor)
        return chunks

    # Encrypted chunks are opened in a thread, others are quickly decoded.
    sealed = any(part.chunks.startswith(MARK) for part in parts)
    chunks = (yield from call(opened)) if sealed else opened()
    is_last = len(parts) < PAGE_PARTS and sum(len(part.chunks) for part in parts) < PAGE_BYTES
    return StreamPage(chunks, chunks[-1].id if chunks else after, state.finished and is_last)


def _values_of(part: StoredPart, vault: Vault | None, tenant: str, job_id: str) -> list[Any]:
    text = part.chunks
    if text.startswith(MARK):
        if vault is None:
            raise Refused("the stream is sealed: only programs that have the key can read it", code="stream_sealed")
        text = vault.open(text, what="stream", tenant=tenant, job_id=job_id, place=f"{part.attempt}/{part.n}")
    values = decode(text)
    assert isinstance(values, list)
    return values


def _is_hidden(store: Store, job_id: str, tenant: str) -> Program[bool]:
    """Whether the values of this job are hidden from readers, as its payload is."""
    job = yield from run(store.jobs.get(job_id, tenant))
    if job is None:
        raise not_found(parse_id(job_id), tenant)
    return bool(job.payload == HIDDEN)


def _shown(value: Published, hidden: bool) -> Published:
    return replace(value, value=HIDDEN) if hidden else value
