"""The rules for payloads as a worker knows them: read when it starts and every few seconds, asked for every job.

What the database judges it judges itself; this is for what only the runtime can keep: that nothing of a restricted
payload is said, and where a large result goes. As long as they could not be read, everything counts as restricted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from holdfast.features.payloads.model import NO_RULE, Effective, PayloadRule, effective, together
from holdfast.runtime.duties import Duty
from holdfast.stores.base import Store

EVERY = 5.0


class RuleBook:
    def __init__(self) -> None:
        self.any = False
        """Whether there is anything to ask at all."""
        self._rules: list[PayloadRule] | None = None
        self._memo: dict[tuple[str, str, Effective], Effective] = {}
        self._until = 0.0

    def load(self, rules: Iterable[PayloadRule] | None) -> None:
        """None: they could not be read, and the worst is to be assumed."""
        if rules is None and self._rules is not None:
            return  # what was read before is better than nothing
        self._rules = None if rules is None else list(rules)
        self._memo = {}
        self.any = rules is None or bool(self._rules)
        self._until = 0.0 if rules is None else time.monotonic() + EVERY

    def of(self, tenant: str, kind: str, declared: Effective = NO_RULE) -> Effective:
        """All that holds for a job, with what the code itself declares."""
        if not self.any:
            return declared
        known = (tenant, kind, declared)
        if known not in self._memo:
            if self._rules is None:
                return replace(declared, restricted=True)
            self._memo[known] = together(declared, effective(self._rules, tenant, kind))
        return self._memo[known]

    def duty(self, tenant: str, every: float) -> Duty:
        async def read(store: Store) -> int:
            if time.monotonic() >= self._until:
                self.load(await store.arun(store.verbs.payload_rules(tenant)))
            return 0

        return Duty("rules", every, run=read)
