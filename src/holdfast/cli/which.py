"""Which jobs a command is about: the options that choose among them, in every command the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast.cli.words import since

Kind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Of this kind.")]
Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="In this queue.")]


@dataclass(frozen=True, kw_only=True)
class Which:
    kind: Kind = None
    queue: Queue = None
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="For this agent.")] = None
    tag: Annotated[str | None, typer.Option("--tag", metavar="TEXT", help="With this tag.")] = None
    newer: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Enqueued since: 1h, or a time.")] = None
    older: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Enqueued before: 1h, or a time.")] = None

    def wanted(self, now: datetime) -> dict[str, Any]:
        """What was given of it; spans count back from now."""
        given = {
            "kind": self.kind,
            "queue": self.queue,
            "agent": self.agent,
            "tag": self.tag,
            "since": since(self.newer, "--since", lambda: now),
            "until": since(self.older, "--until", lambda: now),
        }
        return {name: value for name, value in given.items() if value is not None}
