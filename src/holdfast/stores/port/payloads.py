"""The part of the port that is about payloads: rules for them, references beside them, sealing them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.engine.job import References
from holdfast.features.payloads.model import PayloadRule, RuleDraft
from holdfast.stores.flow import Flow


@dataclass(frozen=True, slots=True)
class SealedJob:
    """A job of which the payload or the result is sealed with an old key, as JSON text; None for what is not."""

    id: str
    tenant: str
    payload: str | None
    result: str | None


@dataclass(frozen=True, slots=True)
class SealedPart:
    """The result of a step (``place`` is its number) or a checkpoint (its name), sealed with an old key."""

    job_id: str
    tenant: str
    what: Literal["checkpoint", "step"]
    place: str
    text: str


class PayloadVerbs(Protocol):
    def set_payload_rule(self, draft: RuleDraft, actor: str, tenant: str) -> Flow[PayloadRule]:
        """An operator's rule, in place of the one there is."""
        ...

    def delete_payload_rule(self, kind: str, declared_by: str, actor: str, tenant: str) -> Flow[bool]: ...
    def declare_rules(self, program: str, drafts: Sequence[RuleDraft], actor: str, tenant: str) -> Flow[int]:
        """What a program has in its code, all of it; what it does not declare any more is gone."""
        ...

    def payload_rules(self, tenant: str) -> Flow[list[PayloadRule]]:
        """Those of the tenant and those of every tenant; nothing is read where there never was one."""
        ...

    def references(self, job_id: str, tenant: str) -> Flow[References]: ...

    def sealed_payloads(self, but: str, after: str | None, want: int, tenant: str) -> Flow[list[SealedJob]]:
        """Jobs that are sealed with another key than this one, by their ids, from behind ``after`` on."""
        ...

    def reseal(self, job_id: str, was: str, becomes: str, actor: str, tenant: str) -> Flow[bool]:
        """Put what was sealed anew in the place of what was; False when that is not there any more."""
        ...

    def sealed_parts(self, but: str, after: SealedPart | None, want: int, tenant: str) -> Flow[list[SealedPart]]:
        """What handlers have kept and is sealed with another key than this one, by job, kind of part and place."""
        ...

    def reseal_part(self, part: SealedPart, becomes: str, actor: str, tenant: str) -> Flow[bool]:
        """The same as ``reseal``, for one of them."""
        ...
