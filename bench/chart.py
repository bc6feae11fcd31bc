"""Draw a run as one SVG picture: W3 as horizontal bars with p50 and p99 of W5, or the rates of producers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from bench.facts import pinned
from bench.figures import PG, Figure
from bench.peers.catalog import OURS, Subject
from bench.peers.run import Results

WIDTH = 980
NAMES, BARS, LATENCY = 262, 380, 150  # the three columns
TOP, ROW, THICK = 92, 34, 18
INK, SOFT, LINE, PAPER = "#1f2933", "#66727f", "#e3e8ed", "#ffffff"
OUR_COLOUR, PEER_COLOUR, NODE_COLOUR = "#0b7285", "#a5b4c0", "#ced6dd"
SLOWEST_SHOWN = 100.0  # ms at the right end of the logarithmic latency scale
FASTEST_SHOWN = 0.1


def draw(subjects: Sequence[Subject], results: Results) -> str:
    shown = [(rate, each) for each in subjects if (rate := results.figure(each.name, "W3", "jobs_s")) is not None]
    shown.sort(key=lambda pair: pair[0], reverse=True)
    height = TOP + ROW * len(shown) + 46
    most = max((rate for rate, _ in shown), default=1.0)
    scale = BARS / most * 0.86  # space for the number after the longest bar
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img"'
        ' aria-label="Jobs per second in one worker process, and pick-up latency">',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>',
        _text(24, 34, "Draining no-op jobs with one worker process", 17, INK, weight=600),
        _text(24, 55, "jobs/s until the last is durably settled; every job checked to have run once", 12.5, SOFT),
        _text(_latency_x(), 55, "pick-up latency, ms", 12.5, SOFT),
    ]
    bottom = TOP + ROW * len(shown)
    parts += _latency_scale(bottom)
    for index, (rate, subject) in enumerate(shown):
        parts += _row(TOP + ROW * index, rate, scale, subject, results)
    parts.append(_legend(bottom + 30))
    return "\n".join([*parts, "</svg>"]) + "\n"


SERIES = {
    "enqueue": OUR_COLOUR, "enqueue_one": "#4db6c6", "PgQueuer": "#b36b00", "graphile-worker": "#7a6fb0",
    "insert + pg_notify": PEER_COLOUR,
}  # fmt: skip
PLOT_LEFT, PLOT_TOP, PLOT_WIDTH, PLOT_HEIGHT = 90, 80, 640, 300


def producers(found: Sequence[Figure]) -> str:
    """Enqueues a second by the number of clients, one line for each way to enqueue."""
    lines: dict[str, dict[int, float]] = {}
    for each in found:
        name, _, clients = each.what.rpartition(", ")
        if each.store == PG and name in SERIES and clients.endswith(("client", "clients")):
            lines.setdefault(name, {})[int(clients.split()[0])] = each.ours
    counts = sorted({count for line in lines.values() for count in line})
    most = max((rate for line in lines.values() for rate in line.values()), default=1.0)
    bottom = PLOT_TOP + PLOT_HEIGHT

    def x(count: int) -> float:
        return PLOT_LEFT + PLOT_WIDTH * counts.index(count) / max(1, len(counts) - 1)

    def y(rate: float) -> float:
        return bottom - PLOT_HEIGHT * rate / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 60}" width="{WIDTH}"'
        f' height="{bottom + 60}" font-family="system-ui, sans-serif" role="img" aria-label="Enqueues per second by the'
        ' number of clients">',
        f'<rect width="{WIDTH}" height="{bottom + 60}" rx="10" fill="{PAPER}"/>',
        _text(24, 34, "Many producers: one enqueue per transaction", 17, INK, weight=600),
        _text(24, 55, "enqueues/s by the number of clients, PostgreSQL, a listener connected", 12.5, SOFT),
    ]
    for share in (0.0, 0.5, 1.0):
        at = bottom - PLOT_HEIGHT * share
        parts.append(f'<line x1="{PLOT_LEFT}" y1="{at}" x2="{PLOT_LEFT + PLOT_WIDTH}" y2="{at}" stroke="{LINE}"/>')
        parts.append(_text(PLOT_LEFT - 10, at + 4, _short(most * share), 11.5, SOFT, anchor="end"))
    parts += [_text(x(count), bottom + 24, f"{count}", 12, SOFT, anchor="middle") for count in counts]
    labels: list[float] = []
    for name, line in sorted(lines.items(), key=lambda pair: -pair[1][max(pair[1])]):
        points = " ".join(f"{x(count):.1f},{y(rate):.1f}" for count, rate in sorted(line.items()))
        colour = SERIES[name]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        labels.append(max(y(line[max(line)]) + 4, labels[-1] + 16 if labels else 0.0))  # no two in one place
        parts.append(_text(PLOT_LEFT + PLOT_WIDTH + 12, labels[-1], name, 12.5, colour, weight=600))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(top: float, rate: float, scale: float, subject: Subject, results: Results) -> list[str]:
    ours = subject.name in OURS
    colour = OUR_COLOUR if ours else PEER_COLOUR if subject.python else NODE_COLOUR
    middle = top + ROW / 2
    length = max(2.0, rate * scale)
    name = subject.title if ours else f"{subject.title} {pinned(subject)}"
    left = NAMES + 24
    found = [
        _text(24, middle + 4.5, name, 13.5, INK, weight=650 if ours else 400),
        _text(NAMES + 12, middle + 4.5, subject.place, 11.5, SOFT, anchor="end"),
        f'<rect x="{left}" y="{middle - THICK / 2:.1f}" width="{length:.1f}" height="{THICK}" rx="3" fill="{colour}"/>',
        _text(left + length + 7, middle + 4.5, _short(rate), 12.5, INK, weight=650 if ours else 400),
    ]
    p50, p99 = results.figure(subject.name, "W5", "p50_ms"), results.figure(subject.name, "W5", "p99_ms")
    if p50 is not None and p99 is not None:
        mark = OUR_COLOUR if ours else SOFT
        a, b = _latency_x(p50), _latency_x(p99)
        found += [
            f'<line x1="{a:.1f}" y1="{middle}" x2="{b:.1f}" y2="{middle}" stroke="{mark}" stroke-width="2"/>',
            f'<circle cx="{a:.1f}" cy="{middle}" r="4.5" fill="{mark}"/>',
            f'<line x1="{b:.1f}" y1="{middle - 5}" x2="{b:.1f}" y2="{middle + 5}" stroke="{mark}" stroke-width="2"/>',
        ]
        found.append(_text(WIDTH - 24, middle + 4.5, f"{p50:.1f} / {p99:.1f}", 12, INK if ours else SOFT, anchor="end"))
        found.append(f"<title>{escape(name)}: p50 {p50:.2f} ms, p99 {p99:.2f} ms</title>")
    return ["<g>", *found, "</g>"]


def _latency_x(ms: float = FASTEST_SHOWN) -> float:
    within = min(max(ms, FASTEST_SHOWN), SLOWEST_SHOWN * 3)
    span = log10(SLOWEST_SHOWN / FASTEST_SHOWN)
    return NAMES + BARS + 62 + LATENCY * log10(within / FASTEST_SHOWN) / span


def _latency_scale(bottom: float) -> list[str]:
    found = []
    for ms in (0.1, 1, 10, 100):
        x = _latency_x(ms)
        found.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="{LINE}"/>')
        found.append(_text(x, TOP - 13, f"{ms:g}", 11, SOFT, anchor="middle"))
    return found


def _legend(y: float) -> str:
    return "".join(
        [
            f'<rect x="24" y="{y - 10}" width="12" height="12" rx="2" fill="{OUR_COLOUR}"/>',
            _text(42, y, "Holdfast", 12, SOFT),
            f'<rect x="118" y="{y - 10}" width="12" height="12" rx="2" fill="{PEER_COLOUR}"/>',
            _text(136, y, "other queues for Python", 12, SOFT),
            f'<rect x="292" y="{y - 10}" width="12" height="12" rx="2" fill="{NODE_COLOUR}"/>',
            _text(310, y, "for Node", 12, SOFT),
            _text(_latency_x(), y, "● p50  to  | p99", 12, SOFT),
        ]
    )


def _short(rate: float) -> str:
    return f"{rate / 1000:.1f} k" if rate >= 1000 else f"{floor(rate):d}"


def _text(x: float, y: float, text: str, size: float, colour: str, *, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
        f' fill="{colour}">{escape(text)}</text>'
    )
