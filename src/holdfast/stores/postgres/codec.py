"""Conversions for PostgreSQL: the codec, the JSON documents of enqueue and workflows, and binary arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_RETRY, AlikeSpecs, Enqueued, JobSpec, References
from holdfast.engine.retry import PATIENT, Backoff, Retry
from holdfast.engine.states import state_of
from holdfast.engine.times import FIRST, LAST
from holdfast.errors import InvalidInput
from holdfast.features.workflows.model import Addition, WorkflowSpec
from holdfast.stores.codecs import texts
from holdfast.stores.flow import Row


@dataclass(frozen=True)  # all instances are equal
class PostgresCodec:
    """Our connections return ids as text; a caller's connection may return UUID objects."""

    ids_are_text = False

    def time(self, value: datetime) -> datetime:
        try:
            return value.astimezone(UTC)
        except OverflowError:
            return FIRST if value.year == 1 else LAST

    def moment(self, value: datetime) -> datetime:
        return value

    def json(self, value: Any) -> Any:
        return value

    def id(self, value: Any) -> str:
        return str(value)

    def tags(self, value: Sequence[str]) -> tuple[str, ...]:
        return texts(value) if value else ()


@lru_cache(maxsize=4096)
def text_of(value: str) -> str:
    """The text as JSON; the same names repeat in every document."""
    return json.dumps(value)


def _policy(spec: JobSpec) -> str:
    retry = spec.retry
    policy = "" if spec.agent is None else f',"policy":"{"job" if spec.retry_given else "kind"}"'
    if retry is DEFAULT_RETRY:  # the SQL function has the same defaults
        return policy
    text = policy + f',"max_attempts":{retry.max_attempts},"max_crashes":{retry.max_crashes}'
    if retry.backoff != PATIENT:
        text += f',"backoff":{json.dumps(retry.backoff.to_json())}'
    return text


_OPTIONAL = (
    "key",
    "content_key",
    "agent",
    "correlation_id",
    "causation_id",
    "parent_id",
    "workflow_id",
    "external_ref",
    "retry_as",
    "payload_hash",
    "executor",
)


def enqueue_document(specs: Sequence[JobSpec]) -> str:
    """A batch as one JSON text. Payloads are JSON already and are inserted without parsing."""
    return "[" + ",".join(map(job_document, specs)) + "]"


def enqueued(rows: Sequence[Row]) -> list[Enqueued]:
    """The results of ``enqueue_many`` and similar functions, which return one row per job."""
    return [
        Enqueued(str(job_id) if job_id else None, created, reason, state_of(state) if state else None, detail)
        for job_id, state, created, reason, detail in rows
    ]


def is_plain(specs: Sequence[JobSpec]) -> bool:
    """Whether the jobs can be inserted without any lookup: no keys, parents, agents or references."""
    return all(
        s.key is None and s.content_key is None and s.parent_id is None and s.agent is None and s.references is None
        for s in specs
    )


def is_bare(s: JobSpec) -> bool:
    """Whether ``enqueue_one`` can take the job: it has a kind, a queue, a priority, the default backoff and a payload,
    and no other options."""
    return (
        s.key is None
        and s.content_key is None
        and s.parent_id is None
        and s.agent is None
        and s.references is None
        and s.correlation_id is None
        and s.causation_id is None
        and s.workflow_id is None
        and s.external_ref is None
        and s.retry_as is None
        and s.depth is None
        and s.executor is None
        and s.delay is None
        and s.run_at is None
        and s.deadline_at is None
        and s.deadline_in is None
        and not s.tags
        and not s.uses
        and s.retry.backoff is PATIENT
    )


def alike(specs: Sequence[JobSpec]) -> tuple[str, Ids, str] | None:
    """The arguments of ``enqueue_alike`` for jobs that differ only in id and payload: the shared options, the ids and
    the payloads. None for other batches."""
    if isinstance(specs, AlikeSpecs):
        texts, payloads = specs.ids, specs.payloads
    else:
        first = specs[0].alike if specs else None
        if first is None or any(spec.alike is not first for spec in specs):
            return None
        texts, payloads = [s.id for s in specs], [s.payload for s in specs]
    shared = "{" + _shared(specs[0])[1:] + "}"
    return shared, ids(texts), "[" + ",".join(payloads) + "]"


def job_document(spec: JobSpec) -> str:
    return f'{{"id":"{spec.id}","payload":{spec.payload}{_shared(spec)}}}'


def job_of(document: dict[str, Any]) -> JobSpec:
    """The inverse of ``job_document``."""
    known: dict[str, Any] = {
        name: document[name] for name in ("id", "kind", "queue", "priority", "enqueued_by", "source_system")
    }
    optional: dict[str, Any] = {name: document.get(name) for name in (*_OPTIONAL, "depth", "delay", "deadline_in")}
    references = [document.get(name) for name in ("source_ref", "target_ref", "payload_ref")]
    times: dict[str, Any] = {
        name: None if document.get(name) is None else datetime.fromisoformat(document[name])
        for name in ("run_at", "deadline_at")
    }
    retry = DEFAULT_RETRY
    if "max_attempts" in document:
        backoff = Backoff.from_json(document["backoff"]) if "backoff" in document else PATIENT
        retry = Retry(document["max_attempts"], max_crashes=document["max_crashes"], backoff=backoff)
    return JobSpec(
        **known,
        **optional,
        payload=json.dumps(document["payload"]),
        retry=retry,
        retry_given=document.get("policy") == "job",
        dedupe="coalesce" if document.get("content_waiting_only") else "skip" if "content_key" in document else None,
        uses=tuple(document.get("uses", ())),
        tags=tuple(document.get("tags", ())),
        references=None if references == [None, None, None] else References(*references),
        **times,
    )


def _shared(spec: JobSpec) -> str:
    """Everything but id and payload, as the rest of a JSON object: ``,"kind":…``."""
    text = (
        f',"kind":{text_of(spec.kind)},"queue":{text_of(spec.queue)},"priority":{spec.priority},'
        f'"enqueued_by":{text_of(spec.enqueued_by)},"source_system":{text_of(spec.source_system)}{_policy(spec)}'
    )
    for name in _OPTIONAL:
        value = getattr(spec, name)
        if value is not None:
            text += f',"{name}":{text_of(value)}'
    if spec.references is not None:
        for name in ("source_ref", "target_ref", "payload_ref"):
            value = getattr(spec.references, name)
            if value is not None:
                text += f',"{name}":{json.dumps(value)}'
    if spec.dedupe == "coalesce":
        text += ',"content_waiting_only":true'
    if spec.uses:
        text += f',"uses":{json.dumps(spec.uses)}'
    if spec.tags:
        text += f',"tags":{json.dumps(spec.tags)}'
    if spec.depth is not None:
        text += f',"depth":{spec.depth}'
    if spec.delay is not None:
        text += f',"delay":{spec.delay!r}'
    if spec.run_at is not None:
        text += f',"run_at":"{spec.run_at.isoformat()}"'
    if spec.deadline_at is not None:
        text += f',"deadline_at":"{spec.deadline_at.isoformat()}"'
    if spec.deadline_in is not None:
        text += f',"deadline_in":{spec.deadline_in!r}'
    return text


class Ids(bytes):
    """``uuid[]``"""


class Numbers(bytes):
    """``int[]``"""


class Words(bytes):
    """``text[]``"""


class Documents(bytes):
    """``json[]``"""


# The OIDs of each array type and of its elements.
TYPES: dict[type[bytes], tuple[int, int]] = {
    Ids: (2951, 2950),
    Numbers: (1007, 23),
    Words: (1009, 25),
    Documents: (199, 114),
}

_LENGTH = "00000010"  # precedes each id: its length in bytes


def ids(values: Sequence[str]) -> Ids:
    """All ids are converted at once. That is safe only if each has the length of an id, with its dashes in the right
    positions: then no text can pass for two ids. Otherwise each id is parsed individually."""
    count = len(values)
    text = ",".join(values)
    digits = text.replace("-", "")
    regular = digits[32::33] == "," * (count - 1) and all(text[at::37] == "-" * count for at in (8, 13, 18, 23))
    data = _binary_ids(digits) if regular and count else b""
    if len(data) != 20 * count:
        data = _binary_ids(",".join([parse_id(value).replace("-", "") for value in values]))
    return Ids(_header(Ids, count) + data)


def _binary_ids(digits: str) -> bytes:
    """Empty if there is a character other than hex digits. ``fromhex`` skips white space; the length reveals that."""
    try:
        return bytes.fromhex(_LENGTH + digits.replace(",", _LENGTH))
    except ValueError:
        return b""


def numbers(values: Sequence[int]) -> Numbers:
    count = len(values)
    pairs = [4] * (2 * count)
    pairs[1::2] = values
    try:
        return Numbers(_header(Numbers, count) + struct.pack(f">{2 * count}i", *pairs))
    except struct.error:
        raise InvalidInput("a number is out of range", code="invalid_input") from None


def words(values: Sequence[str]) -> Words:
    """Each distinct value is encoded once: there are few, repeated often."""
    encoded = {value: struct.pack(">i", len(value.encode())) + value.encode() for value in set(values)}
    return Words(_header(Words, len(values)) + b"".join([encoded[value] for value in values]))


def documents(values: Sequence[str | None]) -> Documents:
    """JSON texts, of which many may be null."""
    data = [
        b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(text := value.encode())) + text
        for value in values
    ]
    return Documents(_header(Documents, len(values)) + b"".join(data))


def _header(cls: type[bytes], count: int) -> bytes:
    """Number of dimensions, whether there may be nulls, element type; then the length and the lower bound."""
    return (
        struct.pack(">iiiii", 1, cls is Documents, TYPES[cls][1], count, 1)
        if count
        else struct.pack(">iii", 0, 0, TYPES[cls][1])
    )


def start_document(spec: WorkflowSpec) -> str:
    workflow = {
        "id": spec.id,
        "kind": spec.kind,
        "generator": spec.generator,
        "on_failure": spec.on_failure,
        "key": spec.key,
        "plan_hash": spec.plan_hash,
        "correlation_id": spec.correlation_id,
        "parent_id": spec.parent_id,
        "enqueued_by": spec.enqueued_by,
        "source_system": spec.source_system,
    }
    plan = plan_document(Addition(spec.nodes, spec.edges, spec.callbacks))
    return f'{{"workflow":{json.dumps(workflow)},{plan[1:]}'


def plan_document(plan: Addition) -> str:
    """The nodes, edges and callbacks of a workflow as JSON text. Payloads are inserted without parsing."""
    nodes = json.dumps(
        [{"id": node.job.id, "name": node.name, "part": node.part, "fatal": node.fatal} for node in plan.nodes]
    )
    edges = json.dumps([{"child": e.child, "parent": e.parent, "on_failure": e.on_failure} for e in plan.edges])
    specs = [node.job for node in plan.nodes]
    plain = json.dumps(is_plain(specs))
    callbacks = ",".join(
        f'{{"step":{json.dumps(each.step)},"fires":"{each.fires}","job":{job_document(each.job)}}}'
        for each in plan.callbacks
    )
    return (
        f'{{"jobs":{enqueue_document(specs)},"plain":{plain},"nodes":{nodes},"edges":{edges},'
        f'"callbacks":[{callbacks}],"behind":{json.dumps(plan.behind)}}}'
    )
