"""``app.restores``."""

from __future__ import annotations

from holdfast.engine.declared import local_only
from holdfast.engine.operation import Program, awaited, operation
from holdfast.features.restores.model import RestoreReport
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace

_OFFLINE = "other programs are stopped while a database is restored"


class Restores(StoreNamespace):
    """A database that was restored, replicated or upgraded: what is different, and adopting it. Both need a login
    that may read every tenant."""

    @operation
    @local_only(_OFFLINE)
    def check(self) -> Program[RestoreReport]:
        """Report where the database comes from and what happens again when its programs start: jobs that were running,
        schedules with missed times, events that consumers have not read. Changes nothing."""
        return (yield from run(self._store.restores.report()))

    acheck = awaited(check)

    @operation
    @local_only(_OFFLINE)
    def adopt(self) -> Program[RestoreReport]:
        """Adopt the copy, which continues as the original. Consumers continue from their positions, and cursors that
        are kept elsewhere miss no new event. Needs the owner of the tables or ``holdfast_admin``, and no open
        transactions. Adopting again does no harm."""
        yield from run(self._store.restores.adopt(self._actor))
        return (yield from run(self._store.restores.report()))

    aadopt = awaited(adopt)
