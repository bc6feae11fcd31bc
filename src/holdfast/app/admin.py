"""What operators do with an app, beside its jobs: pause and resume, and ask how it stands. A part of ``App``."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Unpack

from holdfast import config
from holdfast.engine.units import Duration
from holdfast.errors import Refused
from holdfast.features.assembly import Store
from holdfast.features.connectors.operations import Connectors
from holdfast.features.health.model import DEFAULT_THRESHOLDS, Health, Thresholds, check_thresholds, with_concerns
from holdfast.features.limits.model import Named, Switch
from holdfast.features.limits.operations import Switches
from holdfast.features.tokens.operations import Tokens
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session

log = logging.getLogger("holdfast.worker")


class Operating:
    client: Session
    strict: bool
    _role_checked = False

    @property
    def store(self) -> Store:
        return self.client.store

    @property
    def switches(self) -> Switches:
        """What is paused: ``app.switches.list()``; ``pause`` and ``resume`` are there too, in both colours."""
        return Switches(self.client)

    @property
    def tokens(self) -> Tokens:
        """API tokens: ``app.tokens.issue("ci", roles=["producer"])``, ``.list()``, ``.revoke(id)``, in both colours."""
        return Tokens(self.client, new_id)

    @property
    def connectors(self) -> Connectors:
        """What the tenant's connectors may reach: ``app.connectors.set("http.request", hosts=[…], secrets=[…])``."""
        return Connectors(self.client)

    def pause(
        self,
        *,
        reason: str,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
        **what: Unpack[Named],
    ) -> Switch:
        """Begin nothing more of something, until it is resumed: ``app.pause(queue="mail", reason="SMTP is down",
        until="1h")``, or a ``kind``, an ``agent``, a ``tenant``, or ``everything=True``. What runs may end."""
        return self.switches.pause(reason=reason, until=until, refuse_enqueue=refuse_enqueue, **what)

    def resume(self, **what: Unpack[Named]) -> None:
        """Go on with it: ``app.resume(queue="mail")``."""
        self.switches.resume(**what)

    def health(self, *, tenant: str | None = None, when: Thresholds = DEFAULT_THRESHOLDS) -> Health:
        """How the work of this tenant stands, with a verdict (ok, warn, critical) and its reasons."""
        found = self.client.run(self.client.store.health.get(tenant or self.client.tenant, check_thresholds(when)))
        return with_concerns(found, self.client.store.conditions(when))

    async def ahealth(self, *, tenant: str | None = None, when: Thresholds = DEFAULT_THRESHOLDS) -> Health:
        found = await self.client.arun(
            self.client.store.health.get(tenant or self.client.tenant, check_thresholds(when))
        )
        return with_concerns(found, await self.client.store.aconditions(when))

    def check_role(self) -> None:
        """Before work begins: a role that owns the tables, or that row-level security does not hold for, could read
        and write everything. That is said once; where it was asked to be ``strict``, it is refused."""
        if self._role_checked or self.client.store.embedded:
            return
        for concern in self.client.store.conditions():
            if concern.code != "role_too_powerful":
                continue
            if self.strict or config.is_strict():
                raise Refused(concern.says, code="role_too_powerful", fix=concern.fix)
            log.warning("%s. %s", concern.says, concern.fix)
        self._role_checked = True
