"""The verbs of rules for payloads and of sealing anew; the functions are in ``code/27_payloads``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from holdfast.features.payloads.model import PayloadRule, RuleDraft
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.port.payloads import SealedJob, SealedPart
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reads import Reads


class PayloadVerbs(Calls, Reads):
    @flow(single=True)
    def set_payload_rule(self, draft: RuleDraft, actor: str, tenant: str) -> Steps[PayloadRule]:
        rows = yield self._call(
            "set_payload_rule",
            "%s, %s, %s::text[], %s, %s::integer, %s::integer, %s::boolean, %s, %s",
            draft.kind,
            draft.signal_only,
            list(draft.forbidden),
            draft.classification,
            draft.max_bytes,
            draft.max_result_bytes,
            draft.store,
            actor,
            tenant,
        )
        return Record.decoder(PayloadRule, self.dialect.codec)(rows[0])

    @flow(single=True)
    def delete_payload_rule(self, kind: str, declared_by: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("delete_payload_rule", "%s, %s, %s, %s", kind, declared_by, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def declare_rules(self, program: str, drafts: Sequence[RuleDraft], actor: str, tenant: str) -> Steps[int]:
        document = json.dumps([dataclasses.asdict(draft) for draft in drafts])
        rows = yield self._call("declare_rules", "%s, %s::json, %s, %s", program, document, actor, tenant)
        return int(rows[0][0])

    @flow(single=True)
    def sealed_payloads(self, but: str, after: str | None, want: int, tenant: str) -> Steps[list[SealedJob]]:
        rows = yield self._call("sealed_payloads", "%s, %s::uuid, %s, %s", but, after, want, tenant)
        return [SealedJob(str(job_id), whose, payload, result) for job_id, whose, payload, result in rows]

    @flow(single=True)
    def reseal(self, job_id: str, was: str, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield self._call("reseal", "%s::uuid, %s, %s, %s, %s", job_id, was, becomes, actor, tenant)
        return bool(rows[0][0])

    @flow(single=True)
    def sealed_parts(self, but: str, after: SealedPart | None, want: int, tenant: str) -> Steps[list[SealedPart]]:
        behind = (None, None, None) if after is None else (after.job_id, after.what, after.place)
        rows = yield self._call("sealed_parts", "%s, %s::uuid, %s, %s, %s, %s", but, *behind, want, tenant)
        return [SealedPart(str(job_id), *rest) for job_id, *rest in rows]

    @flow(single=True)
    def reseal_part(self, part: SealedPart, becomes: str, actor: str, tenant: str) -> Steps[bool]:
        where = (part.job_id, part.what, part.place, part.text, becomes)
        rows = yield self._call("reseal_part", "%s::uuid, %s, %s, %s, %s, %s, %s", *where, actor, tenant)
        return bool(rows[0][0])
