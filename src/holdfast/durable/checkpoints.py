"""``ctx.checkpoint``: free-form progress that the next attempt finds (CX-8). It rewrites no hot row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.client import Client
from holdfast.engine.job import Claim
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.steps import RESERVED
from holdfast.errors import InvalidSetting, StaleLease
from holdfast.stores.flow import Flow

CHECKPOINT_LIMIT: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class _Saved:
    claim: Claim
    client: Client

    def _save(self, value: Any, name: str) -> Flow[bool]:
        if check_name(name, "checkpoint") == RESERVED:
            raise InvalidSetting(f"the name {RESERVED!r} is ctx.progress's own", code="reserved_name")
        text, claim = encode(value, limit=CHECKPOINT_LIMIT, what="checkpoint"), self.claim
        text = self.client.vault.seal(text, what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name)
        # Under the lease the job was claimed with, whose scope may be every tenant.
        return self.client.verbs.save_checkpoint(claim.id, claim.lease, claim.attempt, name, text, self.client.scope)

    def _load(self) -> Flow[dict[str, Any]]:
        return self.client.verbs.checkpoints(self.claim.id, self.claim.tenant)

    def _found(self, kept: dict[str, Any], name: str, default: Any) -> Any:
        if name not in kept:
            return default
        claim = self.claim
        return self.client.vault.open_kept(
            kept[name], what="checkpoint", tenant=claim.tenant, job_id=claim.id, place=name
        )

    def _kept(self, kept: bool) -> None:
        if not kept:
            raise StaleLease(f"job {self.claim.id} is no longer in this worker's hands")


class Checkpoints(_Saved):
    """``await ctx.checkpoint.save({"row": 4711})``"""

    __slots__ = ()

    async def save(self, value: Any, name: str = "progress") -> None:
        """Keep a value where a later attempt finds it; the same name again replaces it."""
        self._kept(await self.client.arun(self._save(value, name)))

    async def load(self, name: str = "progress", default: Any = None) -> Any:
        """What was saved under this name, in this attempt or an earlier one."""
        return self._found(await self.client.arun(self._load()), name, default)


class SyncCheckpoints(_Saved):
    """``ctx.checkpoint.save({"row": 4711})``, in a handler that is no coroutine."""

    __slots__ = ()

    def save(self, value: Any, name: str = "progress") -> None:
        self._kept(self.client.run(self._save(value, name)))

    def load(self, name: str = "progress", default: Any = None) -> Any:
        return self._found(self.client.run(self._load()), name, default)
