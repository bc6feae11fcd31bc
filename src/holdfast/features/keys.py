"""Changing keys: what is sealed with an old one is opened, sealed with the current one, and put back, page by page.

First payloads and results, then what handlers have kept on their way. Each is a transaction of its own, so it can be
stopped and begun again at any moment, and jobs run meanwhile. What cannot be opened (its key is not here) is left as it
is, and counted. What lay in the artifact store under the old key goes when no job names it any more: a retry that is a
job of its own may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.runtime.leftovers import clear_now
from holdfast.stores.base import Caller
from holdfast.stores.port.payloads import SealedJob, SealedPart
from holdfast.vault import Vault, What

PAGE = 100


@dataclass(frozen=True, slots=True)
class Rotated:
    """``unread``: those that no key here opens. ``passed``: those that changed meanwhile, and are met the next time."""

    resealed: int = 0
    unread: int = 0
    passed: int = 0


def rotate(caller: Caller, vault: Vault, told: Callable[[Rotated], None] = lambda _: None, page: int = PAGE) -> Rotated:
    """Seal everything of the caller's tenant (or of all, for ``*``) with the current key; tells how far it is."""
    if vault.keys is None:
        raise InvalidSetting("there are no keys here", code="no_keys", fix="Set HOLDFAST_KEYS, the new key first.")
    done, after = Rotated(), None
    while found := caller.run(caller.verbs.sealed_payloads(vault.keys.current, after, page, caller.tenant)):
        for job in found:
            for what, text in (("payload", job.payload), ("result", job.result)):
                if text is not None:
                    done = _counted(done, _one(caller, vault, job, what, text))  # type: ignore[arg-type]
        after = found[-1].id
        told(done)
    done = _rotate_parts(caller, vault, done, told, page)
    if vault.artifacts is not None:
        clear_now(caller, vault.artifacts, caller.tenant)
    return done


def _rotate_parts(caller: Caller, vault: Vault, done: Rotated, told: Callable[[Rotated], None], page: int) -> Rotated:
    """What handlers have kept on their way."""
    assert vault.keys is not None
    after: SealedPart | None = None
    while found := caller.run(caller.verbs.sealed_parts(vault.keys.current, after, page, caller.tenant)):
        for part in found:
            done = _counted(done, _part(caller, vault, part))
        after = found[-1]
        told(done)
    return done


def _part(caller: Caller, vault: Vault, part: SealedPart) -> bool | None:
    try:
        opened = vault.open(part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=part.place)
    except HoldfastError:
        return None
    becomes = vault.seal_anew(
        opened, part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=part.place
    )
    return caller.run(caller.verbs.reseal_part(part, becomes, caller.actor, part.tenant))


def _counted(done: Rotated, written: bool | None) -> Rotated:
    return Rotated(done.resealed + (written is True), done.unread + (written is None), done.passed + (written is False))


def _one(caller: Caller, vault: Vault, job: SealedJob, what: What, text: str) -> bool | None:
    """Whether it was written; None when it could not be opened."""
    try:
        opened = _opened(caller, vault, job, what, text)
    except HoldfastError:
        return None
    becomes = vault.seal_anew(opened, text, what=what, tenant=job.tenant, job_id=job.id)
    written = caller.run(caller.verbs.reseal(job.id, text, becomes, caller.actor, job.tenant))
    if not written:
        vault.drop(becomes, tenant=job.tenant)
    return written


def _opened(caller: Caller, vault: Vault, job: SealedJob, what: What, text: str) -> str:
    try:
        return vault.open(text, what=what, tenant=job.tenant, job_id=job.id)
    except Refused as refused:
        if refused.code != "seal_broken":
            raise
        # A retry that is a job of its own has the payload of the first one.
        for other in caller.run(caller.verbs.chain(job.id, job.tenant)):
            try:
                return vault.open(text, what=what, tenant=job.tenant, job_id=other.id)
            except Refused:
                continue
        raise
