"""What a handler can know and do while it runs: ``def handler(ctx: holdfast.Context, …)``."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.client import Client
from holdfast.domain.errors import StaleLease
from holdfast.domain.job import Claim
from holdfast.domain.payload import encode
from holdfast.stores.flow import Flow

CHECKPOINT_LIMIT = 1_048_576

_current: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)


@dataclass(frozen=True, slots=True)
class Context:
    """The job in hand. ``idempotency_key`` is the same in every attempt: give it to the outside world."""

    claim: Claim
    client: Client = field(repr=False)
    log: logging.Logger = field(repr=False)

    @property
    def job_id(self) -> str:
        return self.claim.id

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def kind(self) -> str:
        return self.claim.kind

    @property
    def attempt(self) -> int:
        return self.claim.attempt

    @property
    def correlation_id(self) -> str | None:
        return self.claim.correlation_id

    @property
    def deadline_at(self) -> datetime | None:
        return self.claim.deadline_at

    @property
    def idempotency_key(self) -> str:
        return f"{self.claim.tenant}:{self.claim.kind}:{self.claim.id}"

    def save(self, value: Any, name: str = "progress") -> None:
        """Keep progress where a later attempt finds it. Raises ``StaleLease`` when the job is no longer ours."""
        self._kept(self.client.run(self._save(value, name)))

    async def asave(self, value: Any, name: str = "progress") -> None:
        self._kept(await self.client.arun(self._save(value, name)))

    def load(self, name: str = "progress", default: Any = None) -> Any:
        """What was saved under this name, in this attempt or an earlier one."""
        return self.client.run(self._saved()).get(name, default)

    async def aload(self, name: str = "progress", default: Any = None) -> Any:
        return (await self.client.arun(self._saved())).get(name, default)

    def _save(self, value: Any, name: str) -> Flow[bool]:
        text = encode(value, limit=CHECKPOINT_LIMIT, what="checkpoint")
        # Under the lease the job was claimed with, whose scope may be every tenant.
        return self.client.verbs.save_checkpoint(
            self.claim.id, self.claim.lease, self.claim.attempt, name, text, self.client.tenant
        )

    def _saved(self) -> Flow[dict[str, Any]]:
        return self.client.verbs.checkpoints(self.claim.id, self.claim.tenant)

    def _kept(self, kept: bool) -> None:
        if not kept:
            raise StaleLease(f"job {self.claim.id} is no longer in this worker's hands")


def current() -> Context | None:
    """The context of the handler that is running here, if one is."""
    return _current.get()


def enter(context: Context) -> None:
    """Bind the context to this task or thread; it ends with it."""
    _current.set(context)
