"""Looking at API tokens: everything but their hashes."""

from __future__ import annotations

from holdfast.engine.ids import parse_id
from holdfast.features.tokens.model import ApiToken
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.reader import within


class TokenReads(Reader):
    @flow(writes=False)
    def tokens(
        self, tenant: str, sessions: bool = False, before: str | None = None, limit: int = 50
    ) -> Steps[list[ApiToken]]:
        kind = "" if sessions else " and t.parent_id is null"
        older = "" if before is None else " and t.id < :before"
        text = (
            f"select {Record.columns(ApiToken, 't.')} from {{api_token}} t"
            f" where {within(tenant, 't.tenant')}{kind}{older} order by t.id desc limit {max(1, min(limit, 1000)):d}"
        )
        place = {} if before is None else {"before": parse_id(before)}
        rows = yield from self._ask(tenant, text, **place)
        decode = Record.decoder(ApiToken, self.dialect.codec)
        return [decode(row) for row in rows]
