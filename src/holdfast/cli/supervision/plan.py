"""What a child is told when it starts, and the words of the socket between it and its supervisor.

The plan goes down the socket and not into the arguments: a database URL has no business in the list of processes.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.worker.worker import WorkerOptions

# Orders. They are no signals, because a service manager may signal every process of a service itself, and two of
# those would mean "at once". The end of the socket means STOP too.
STOP: Final = b"stop\n"
STOP_NOW: Final = b"now\n"

# What a worker may need beyond its grace: a second for handlers to hear of it, three for threads that do not, settling.
MARGIN: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``number`` is the child's place, from 1; ``watch`` asks it to report the project's files that it imports;
    ``listen`` is a socket on which it serves the API and the dashboard as well."""

    app: str
    url: str | None
    options: WorkerOptions
    program: str
    log_level: str
    as_json: bool
    log_json: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    number: int = 1
    watch: bool = False
    listen: int | None = None

    def to_line(self) -> bytes:
        values = dataclasses.asdict(self)
        del values["options"]["extra_duties"]  # functions, which the command line has none of
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        values: dict[str, Any] = json.loads(line)
        options = values.pop("options")
        return cls(options=WorkerOptions(**(options | {"queues": tuple(options["queues"])})), **values)
