"""Looking at dead letters in their groups, and at bulk operations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.dead_letters.model import DeadLetterGroup, GroupFilter, Operation, Remade
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Row, Steps, flow
from holdfast.stores.job_reads import MOST, Reader, spoken
from holdfast.stores.reader import within

GROUP_COLUMNS = Record.columns(DeadLetterGroup, "g.").replace("g.error_message", spoken("g.error_message", "g"))
OPERATION_COLUMNS = Record.columns(Operation, "o.")
# A literal part of a text, whatever case it is in; a few hundred groups are read for it, not the dead letters.
_FITS = " or ".join(
    f"lower({column}) like :part escape '!'" for column in ("g.error_code", "g.error_message", "g.frame", "g.note")
)


class DeadLetterReads(Reader):
    @cached_property
    def _group(self) -> Callable[[Row], DeadLetterGroup]:
        return Record.decoder(DeadLetterGroup, self.dialect.codec)

    @cached_property
    def _operation(self) -> Callable[[Row], Operation]:
        return Record.decoder(Operation, self.dialect.codec)

    @flow(writes=False)
    def dead_letter_groups(self, wanted: GroupFilter) -> Steps[list[DeadLetterGroup]]:
        conditions, moment = [within(wanted.tenant, "g.tenant")], self.dialect.codec.moment
        params: dict[str, object] = {}
        if not wanted.resolved:
            conditions.append("g.open > 0")
        if wanted.kind is not None:
            conditions.append("g.kind = :kind")
            params["kind"] = wanted.kind
        if wanted.queue is not None:
            fits = "l.tenant = g.tenant and l.queue = :queue and l.fingerprint = g.fingerprint"
            conditions.append(f"exists (select 1 from {{dead_letter}} l where {fits})")
            params["queue"] = wanted.queue
        if wanted.text is not None:
            conditions.append(f"({_FITS})")
            params["part"] = _part(wanted.text)
        if wanted.since is not None:
            conditions.append("g.last_at >= :since")
            params["since"] = moment(wanted.since)
        by = "g.last_at" if wanted.order == "last" else "g.open"
        place = wanted.place()
        if place is not None:
            conditions.append(f"({by}, g.fingerprint) < (:place, :name)")
            last, opened, params["name"] = place
            params["place"] = moment(datetime.fromtimestamp(last, UTC)) if wanted.order == "last" else opened
        index = "largest" if wanted.order == "count" else "all" if wanted.resolved else "newest"
        named = "" if wanted.tenant == EVERY_TENANT else self.dialect.by_index(f"dead_letter_group_{index}")
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g{named} where {' and '.join(conditions)}"
            f" order by {by} desc, g.fingerprint desc limit {max(1, min(wanted.limit, MOST)):d}"
        )
        rows = yield from self._ask(wanted.tenant, text, **params)
        return [self._group(row) for row in rows]

    @flow(writes=False)
    def dead_letter_group(self, fingerprint: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter_group}} g"
            f" where {within(tenant, 'g.tenant')} and g.fingerprint = :name order by g.tenant limit 1"
        )
        rows = yield from self._ask(tenant, text, name=fingerprint)
        return self._group(rows[0]) if rows else None

    @flow(writes=False)
    def group_of(self, job_id: str, tenant: str) -> Steps[DeadLetterGroup | None]:
        text = (
            f"select {GROUP_COLUMNS} from {{dead_letter}} l join {{dead_letter_group}} g on g.tenant = l.tenant"
            f" and g.fingerprint = l.fingerprint where l.job_id = :id and {within(tenant, 'l.tenant')}"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        return self._group(rows[0]) if rows else None

    @flow(writes=False)
    def remade(self, job_id: str, tenant: str) -> Steps[list[Remade]]:
        text = (
            f"select {Record.columns(Remade, 'r.')} from {{redriven_as}} r"
            f" where (r.job_id = :id or r.new_id = :id) and {within(tenant, 'r.tenant')} order by r.at"
        )
        rows = yield from self._ask(tenant, text, id=parse_id(job_id))
        decode = Record.decoder(Remade, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(writes=False)
    def operation(self, operation_id: str, tenant: str) -> Steps[Operation | None]:
        text = f"select {OPERATION_COLUMNS} from {{operation}} o where o.id = :id and {within(tenant, 'o.tenant')}"
        rows = yield from self._ask(tenant, text, id=parse_id(operation_id))
        return self._operation(rows[0]) if rows else None

    @flow(writes=False)
    def operations(
        self, tenant: str, running: bool = False, before: str | None = None, limit: int = 50
    ) -> Steps[list[Operation]]:
        conditions = [within(tenant, "o.tenant")]
        conditions += ["o.state = 'running'"] if running else []
        conditions += ["o.id < :before"] if before is not None else []
        text = (
            f"select {OPERATION_COLUMNS} from {{operation}} o where {' and '.join(conditions)}"
            f" order by o.id desc limit {max(1, min(limit, MOST)):d}"
        )
        rows = yield from self._ask(tenant, text, **({} if before is None else {"before": parse_id(before)}))
        return [self._operation(row) for row in rows]


def _part(text: str) -> str:
    """For ``like``, with what means something to it taken literally."""
    literal = text.lower()
    for sign in "!%_":
        literal = literal.replace(sign, f"!{sign}")
    return f"%{literal}%"
