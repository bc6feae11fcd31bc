"""The verbs of pausing; the functions are in ``code/37_switches``."""

from __future__ import annotations

from datetime import timedelta

from holdfast.features.limits.model import Pausing, Switch
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Reads


class SwitchVerbs(Reads):
    @flow(single=True)
    def pause(self, what: Pausing, actor: str) -> Steps[Switch]:
        schema = self.dialect.schema
        until = f"coalesce(%s::timestamptz, {schema}clock_now() + %s::interval)"
        text = f"select {Record.columns(Switch)} from {schema}pause(%s, %s, %s, {until}, %s::boolean, %s, %s)"
        lasting = None if what.lasting is None else timedelta(seconds=what.lasting)
        params = (what.scope, what.name, what.reason, what.until, lasting, what.refuse_enqueue, actor, what.tenant)
        rows = yield Statement(text, params)
        return Record.decoder(Switch, self.dialect.codec)(rows[0])

    @flow(single=True)
    def resume(self, scope: str, name: str, actor: str, tenant: str) -> Steps[bool]:
        rows = yield Statement(f"select {self.dialect.schema}resume(%s, %s, %s, %s)", (scope, name, actor, tenant))
        return bool(rows[0][0])
