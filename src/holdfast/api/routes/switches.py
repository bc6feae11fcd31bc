"""Switches: what is paused. A tenant's own credentials pause what is the tenant's, and nothing of anybody else's."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from holdfast.access import Identity, Scope
from holdfast.api.answers import Page
from holdfast.api.asking import TheApp, Who, allowed
from holdfast.api.bodies import Body, Instant, Span, Text, Words
from holdfast.api.routing import Router
from holdfast.errors import Refused
from holdfast.features.limits.model import Named, Switch

router = Router(prefix="/switches", tags=["switches"])


class What(Body):
    """A queue, a kind or an agent, or everything: of the tenant, or of every tenant."""

    queue: Text | None = None
    kind: Text | None = None
    agent: Text | None = None
    everything: bool = False
    every_tenant: bool = Field(default=False, description="For those who run the whole.")

    def named(self, who: Identity) -> Named:
        given = Named()
        if self.queue is not None:
            given["queue"] = self.queue
        if self.kind is not None:
            given["kind"] = self.kind
        if self.agent is not None:
            given["agent"] = self.agent
        if self.every_tenant or who.everywhere:
            if not who.runs_all:
                raise Refused(
                    "this concerns every tenant",
                    code="not_for_a_tenant",
                    fix="It takes a token of tenant *, for those who run the whole.",
                )
            given["everything"] = self.everything
        elif given or self.everything:
            given["tenant"] = who.tenant  # everything of it, where nothing else is named
        return given


class Pause(What):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"queue": "mail", "reason": "SMTP is down", "until": "1h"}]}
    )

    reason: Words
    until: Instant | Span | None = Field(default=None, description="A time, or how long.")
    refuse_enqueue: bool | None = None


@router.get("", dependencies=[allowed(Scope.READ)], response_model=Page[Switch])
async def list_switches(app: TheApp) -> Page[Switch]:
    """What is paused of this tenant's or of everybody's, the widest first."""
    return Page(items=await app.switches.alist())


@router.post("/pause", dependencies=[allowed(Scope.OPERATE)], response_model=Switch)
async def pause(app: TheApp, who: Who, body: Pause) -> Switch:
    """Begin nothing more of it, until it is resumed; what runs may end."""
    return await app.switches.apause(
        reason=body.reason, until=body.until, refuse_enqueue=body.refuse_enqueue, **body.named(who)
    )


@router.post("/resume", dependencies=[allowed(Scope.OPERATE)], status_code=204)
async def resume(app: TheApp, who: Who, body: What) -> None:
    """Go on with it; named as it was when it was paused."""
    await app.switches.aresume(**body.named(who))
