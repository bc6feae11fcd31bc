"""Jobs as bars along time: what is drawn is worked out here, so that it is there without JavaScript. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.features.workflows.model import Node

WIDTH, LABEL, ROW, TOP = 960, 220, 24, 24
TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """One job. Without a width it has not been begun."""

    job_id: str
    label: str
    state: str
    y: int
    x: float
    width: float
    began: datetime | None
    took: timedelta | None


@dataclass(frozen=True, slots=True)
class Chart:
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, timedelta], ...]
    """Where along the axis, and how long after the beginning that is."""
    height: int
    begin: datetime | None
    width: int = WIDTH
    label: int = LABEL
    row: int = ROW
    top: int = TOP


def bars(nodes: Sequence[Node], now: datetime) -> Chart:
    began = [node.started_at for node in nodes if node.started_at is not None]
    begin = min(began, default=None)
    ends = [node.finished_at or now for node in nodes if node.started_at is not None]
    span = max(max(ends, default=now) - begin, timedelta(milliseconds=1)) if begin is not None else timedelta(0)
    room = WIDTH - LABEL - 10
    found = []
    for place, node in enumerate(nodes):
        x, width, took = float(LABEL), 0.0, None
        if node.started_at is not None and begin is not None:
            took = max((node.finished_at or now) - node.started_at, timedelta(0))
            x = LABEL + room * ((node.started_at - begin) / span)
            width = max(2.0, min(room * (took / span), WIDTH - x))
        y = TOP + place * ROW
        found.append(
            Bar(node.job_id, node.label, node.state.value, y, round(x, 1), round(width, 1), node.started_at, took)
        )
    ticks = [] if begin is None else [(LABEL + room * n / TICKS, span * n / TICKS) for n in range(TICKS + 1)]
    return Chart(tuple(found), tuple(ticks), TOP + len(nodes) * ROW + 10, begin)
