"""The diagrams of the documentation: `python -m tools.diagrams --write` (or `make reference`).

`states.svg` is drawn from the transition table in `holdfast/engine/states.py`: the event types on its arrows and the
notes below come from there; only the positions are chosen here. `recovery.svg` and `architecture.svg` are drawn by
hand. Each picture has a background, so that it is readable on light and dark pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from holdfast.engine.states import TRANSITIONS, State

ASSETS = Path(__file__).parents[1] / "docs" / "assets"

STYLE = """<style>
.card{fill:#fff;stroke:#cfd8dc}.box{fill:#eceff1;stroke:#607d8b}.good{fill:#e0f2e9;stroke:#2e7d5b}
.bad{fill:#fdeaea;stroke:#b3403a}.idle{fill:#fff7e0;stroke:#a8791a}text{fill:#263238;font:13px system-ui,sans-serif}
.b{font-weight:600}.s{font-size:11.5px;fill:#455a64}.e{fill:none;stroke:#607d8b;stroke-width:1.4}
.d{stroke-dasharray:5 4}.l{fill:#fff}.t{fill:#607d8b}
@media(prefers-color-scheme:dark){.card{fill:#1e272c;stroke:#37474f}.box{fill:#2b363c;stroke:#90a4ae}
.good{fill:#1d3a2e;stroke:#66bb8f}.bad{fill:#432827;stroke:#e08a84}.idle{fill:#3d351f;stroke:#d6ab4e}
text{fill:#eceff1}.s{fill:#b0bec5}.e{stroke:#90a4ae}.l{fill:#1e272c}.t{fill:#90a4ae}}
</style>"""
ARROW = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="t" d="M0 0 8 4 0 8z"/></marker></defs>'
)


def svg(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    card = f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>'
    return "\n".join([head, f"<title>{title}</title>", STYLE, ARROW, card, *parts, "</svg>"]) + "\n"


def box(x: float, y: float, width: float, height: float, kind: str, *lines: str) -> str:
    """Draw a box with its centre at x, y. The first line is its name."""
    corner = f'x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}"'
    top = y + 4.5 - 8 * (len(lines) - 1)
    texts = "".join(
        f'<text class="{"s" if number else "b"}" x="{x:g}" y="{top + 16 * number:g}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for number, line in enumerate(lines)
    )
    return f'<g><rect class="{kind}" {corner} rx="7"/>{texts}</g>'


def arrow(path: str, label: str = "", at: tuple[float, float] = (0, 0), dashed: bool = False) -> str:
    line = f'<path class="e{" d" if dashed else ""}" marker-end="url(#a)" d="{path}"/>'
    if not label:
        return line
    width = 6.3 * len(label) + 8
    back = f'<rect class="l" x="{at[0] - width / 2:g}" y="{at[1] - 12:g}" width="{width:g}" height="16"/>'
    return f'{line}{back}<text class="s" x="{at[0]:g}" y="{at[1]:g}" text-anchor="middle">{escape(label)}</text>'


def note(x: float, y: float, text: str, kind: str = "s", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


# -- The state machine -----------------------------------------------------------------------------------------------

S = State
POSITIONS: dict[State, tuple[float, float, str]] = {
    S.QUEUED: (160, 150, "idle"),
    S.LEASED: (390, 70, "box"),
    S.IN_PROGRESS: (610, 150, "box"),
    S.SUCCEEDED: (880, 70, "good"),
    S.WAITING_FOR_APPROVAL: (880, 190, "idle"),
    S.RETRY_WAITING: (270, 310, "idle"),
    S.FAILED: (610, 310, "bad"),
    S.DEAD_LETTER: (880, 310, "bad"),
    S.CANCELLED: (880, 420, "box"),
    S.CLEANED: (610, 420, "box"),
}
# The arrows, with the positions of their labels. Transitions without an arrow become notes.
ARROWS: dict[tuple[State | None, State], tuple[str, tuple[float, float]]] = {
    (None, S.QUEUED): ("M18 150H86", (52, 140)),
    (S.QUEUED, S.LEASED): ("M200 131 320 84", (248, 96)),
    (S.LEASED, S.QUEUED): ("M345 89 232 141", (316, 128)),
    (S.LEASED, S.IN_PROGRESS): ("M464 80 560 130", (520, 92)),
    (S.QUEUED, S.IN_PROGRESS): ("M234 155H534", (420, 159)),
    (S.IN_PROGRESS, S.SUCCEEDED): ("M686 140 804 82", (740, 100)),
    (S.IN_PROGRESS, S.WAITING_FOR_APPROVAL): ("M686 158 790 182", (736, 163)),
    (S.IN_PROGRESS, S.FAILED): ("M610 169V289", (610, 240)),
    (S.IN_PROGRESS, S.RETRY_WAITING): ("M566 169 338 291", (440, 226)),
    (S.WAITING_FOR_APPROVAL, S.QUEUED): ("M820 171C690 10 300 0 180 129", (560, 34)),
    (S.WAITING_FOR_APPROVAL, S.FAILED): ("M850 209 684 297", (768, 254)),
    (S.FAILED, S.RETRY_WAITING): ("M534 310H348", (440, 314)),
    (S.FAILED, S.DEAD_LETTER): ("M686 310H804", (742, 304)),
    (S.RETRY_WAITING, S.QUEUED): ("M252 291 176 171", (206, 240)),
    (S.DEAD_LETTER, S.QUEUED): ("M840 329C720 410 40 440 116 171", (420, 392)),
    (S.DEAD_LETTER, S.CANCELLED): ("M880 329V399", (880, 370)),
}


def states() -> str:
    def parts() -> Iterator[str]:
        types: dict[tuple[State | None, State], list[str]] = {}
        for transition in TRANSITIONS:
            types.setdefault((transition.source, transition.target), []).append(str(transition.type.value))
        for pair, (path, at) in ARROWS.items():
            yield arrow(path, ", ".join(types.pop(pair, ["?"])), at)
        for state, (x, y, kind) in POSITIONS.items():
            yield box(x, y, 150 if len(state.value) < 15 else 178, 38, kind, state.value)
        rest: dict[tuple[str, State | None], list[str]] = {}
        for (source, target), names in types.items():
            for name in names:
                ends = None if source == target else target
                rest.setdefault((name, ends), []).append(source.value if source else "new")
        y = 466.0
        for (name, ends), sources in rest.items():
            to = f" → {ends.value}" if ends else " (stays in its state)"
            yield note(24, y, f"{name}: {', '.join(sorted(sources))}{to}")
            y += 19

    return svg(1000, 560, "The states of a job and the transitions between them", parts())


# -- A crash and its recovery ----------------------------------------------------------------------------------------


def recovery() -> str:
    def parts() -> Iterator[str]:
        rows = ((70, "worker A"), (170, "database"), (270, "worker B"))
        for y, name in rows:
            yield note(22, y + 4, name, "b")
            yield f'<path class="e d" d="M110 {y}H978"/>'
        yield box(190, 70, 112, 38, "box", "claims the job")
        yield arrow("M190 89V148", "lease, attempt 1", (190, 122))
        yield box(190, 170, 112, 38, "box", "in_progress")
        yield box(330, 70, 112, 38, "box", "heartbeat")
        yield arrow("M330 89V148", "renews the lease", (330, 122))
        yield box(330, 170, 126, 38, "box", "lease: 30 s more")
        yield box(455, 70, 96, 38, "bad", "kill -9")
        yield box(570, 170, 130, 38, "idle", "lease expires")
        yield arrow("M394 170H504")
        yield box(660, 270, 112, 38, "box", "sweep")
        yield arrow("M660 251C660 220 690 205 712 190", "≤ 5 s later", (640, 226))
        yield box(742, 170, 120, 38, "idle", "crash counted:", "queued again")
        yield box(850, 270, 116, 38, "good", "claims the job")
        yield arrow("M850 251V190", "attempt 2", (850, 224))
        yield box(888, 170, 116, 38, "good", "succeeded")
        yield box(905, 70, 124, 38, "bad", "A returns late")
        yield arrow("M905 89V148", "old lease: refused", (905, 122), dashed=True)
        yield note(
            22, 326, "No process checks whether worker A is alive. Its lease expires, and any worker releases its jobs."
        )
        yield note(22, 345, "Every write carries lease and attempt, so a late worker A cannot overwrite the result.")

    return svg(1000, 366, "A worker crashes and another one finishes its job", parts())


# -- The architecture ------------------------------------------------------------------------------------------------


def architecture() -> str:
    def parts() -> Iterator[str]:
        yield note(22, 30, "Your processes", "b")
        yield box(150, 76, 208, 54, "box", "Application", "App: enqueue in a transaction")
        yield box(390, 76, 208, 54, "box", "Workers", "claim, run handlers, settle")
        yield box(630, 76, 208, 54, "box", "holdfast serve", "HTTP API and dashboard")
        yield box(870, 76, 208, 54, "box", "holdfast …", "command line, cron tick")
        yield box(
            510, 168, 930, 40, "box", "App namespaces: jobs, approvals, schedules, workflows, limits, events, audit …"
        )
        yield box(270, 246, 450, 54, "box", "Engine (pure Python)", "states, retry policy, settlements")
        yield box(750, 246, 450, 54, "box", "Stores", "one port: functions on PostgreSQL, flows on SQLite")
        for x in (150, 390, 630, 870):
            yield arrow(f"M{x} 103V146")
        yield arrow("M270 188V217")
        yield arrow("M750 188V217")
        yield arrow("M495 246H523")
        yield arrow("M750 273V325")
        yield '<rect class="good" x="45" y="327" width="930" height="118" rx="9"/>'
        yield note(62, 350, "Your database: a SQLite file, or PostgreSQL", "b")
        yield box(165, 398, 200, 54, "card", "job", "facts, never changed")
        yield box(385, 398, 200, 54, "card", "job_state", "state, position, lease")
        yield box(605, 398, 200, 54, "card", "event", "the ledger, sealed")
        yield box(840, 398, 230, 54, "card", "triggers", "refuse illegal transitions")
        yield note(
            45,
            470,
            "Any process may die at any moment. Uncommitted work did not happen; everything else is in the database.",
        )

    return svg(1000, 490, "The architecture of Holdfast", parts())


DIAGRAMS = {"states.svg": states, "recovery.svg": recovery, "architecture.svg": architecture}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        path = ASSETS / name
        if "--write" in sys.argv:
            path.write_text(draw(), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != draw():
            sys.exit(f"docs/assets/{name} is not current. Run: make reference")
