"""The page docs/reference/errors.md: every stable code with its class, message and fix. Part of `tools.reference`.

The source is parsed, not imported. Codes come from: `code="…"` in a call, a parameter `code` with a default,
`default_code` of an error class, a helper that takes the code as an argument, a variable `code` or `reason`, the tables
`REASONS` and `FIXES`, and literals in SQL. Texts come from the same calls. A code whose call has no text of its own, as
those of SQL, has one in `tools/heads/errors.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import errors
from tools.python_reference import NOTICE, cell, head, prose, shown

PACKAGE = Path(errors.__file__).parent
TEXTS = Path(__file__).parent / "heads" / "errors.toml"
# Calls whose arguments are codes: the name, the position of the code, and that of the message if there is one.
HELPERS: dict[str, tuple[int, int | None]] = {
    "_refusal": (0, None),  # engine/payload.py
    "_whole": (4, None),  # engine/retry.py
    "Reject": (0, 1),  # engine/outcome.py: the error code of a final failure
    "DeliveryVerdict": (1, 2),  # features/webhooks/model.py
    "Failed": (0, 1),  # engine/outcome.py: the error code of an attempt
    "Crashed": (0, 1),  # the same, for a process that died
    "Snoozed": (1, None),  # the reason of a snooze
    "Enqueued": (2, None),  # the reason why no job was created
    "Verdict": (3, None),  # the reason of a refusal
    "show": (0, 1),  # cli/failures.py
    "problem": (1, 2),  # server/problems.py
}
_CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_SQL = re.compile(
    r"""(?:error_code\ *(?:=|:=)|reason'?,|reason"?\ *(?::=|:)|refusal|then|else|true,|select\ null.*,|not\ v_\w+\ then)
        \ *["']([a-z]+(?:_[a-z]+)+)["']""",
    re.VERBOSE,
)
# Words of SQL that match but are not codes: states, columns and classes.
NO_CODES = {"safe_metadata", "in_progress", "retry_waiting", "dead_letter", "waiting_for_approval", "max_attempts"}


@dataclass
class Entry:
    """What the source says about a code."""

    classes: dict[str, None] = field(default_factory=dict)
    messages: dict[str, None] = field(default_factory=dict)
    fixes: dict[str, None] = field(default_factory=dict)


def collect() -> dict[str, Entry]:
    """Return every code of the source."""
    found: dict[str, Entry] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        read_python(path.read_text(encoding="utf-8"), found)
    # transition_rules.sql names constraints of rows; their code is broken_invariant.
    files = [path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts]
    files = [path for path in files if path.name != "transition_rules.sql"]
    files += (PACKAGE / "stores" / "sqlite").rglob("*.py")
    for path in files:
        for code in set(_SQL.findall(path.read_text(encoding="utf-8"))) - NO_CODES:
            found.setdefault(code, Entry())
    return found


def read_python(source: str, found: dict[str, Entry]) -> None:
    """Add the codes of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call():
                _read_call(node, found)
            case ast.ClassDef(body=body):
                for statement in body:
                    for code in _default_code(statement):
                        entry = found.setdefault(code, Entry())
                        entry.classes[node.name] = None
                        if text := ast.get_docstring(node):
                            entry.messages[text.partition("\n\n")[0]] = None
            case ast.FunctionDef(args=ast.arguments(kwonlyargs=named, kw_defaults=defaults)):
                for parameter, default in zip(named, defaults, strict=True):
                    if parameter.arg == "code" and default is not None:
                        _add(default, found)
            case ast.Assign(targets=[ast.Name(id="reason" | "code" | "RETRY_REQUESTED")], value=value):
                _add(value, found)
            case ast.Assign(targets=[ast.Name(id="REASONS")], value=ast.Dict() as table):
                for key, value in zip(table.keys, table.values, strict=True):
                    for code in _codes(key):
                        found.setdefault(code, Entry()).messages.update(dict.fromkeys(strings(value)))
            case ast.AnnAssign(target=ast.Name(id="OURS"), value=ast.Dict(values=values)):
                for pair in values:
                    if isinstance(pair, ast.Tuple):
                        _add(pair.elts[1], found)


def _default_code(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=[ast.Name(id="default_code")], value=value):
            yield from _codes(value)
        case ast.AnnAssign(target=ast.Name(id="default_code"), value=ast.expr() as value):
            yield from _codes(value)


def _read_call(node: ast.Call, found: dict[str, Entry]) -> None:
    name = name_of(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    position, message = HELPERS.get(name, (None, None))
    code = keywords.get("code")
    if code is not None:
        message = 0
    elif position is not None and len(node.args) > position:
        code = node.args[position]
    for each in _codes(code):
        entry = found.setdefault(each, Entry())
        if name in errors.__all__:
            entry.classes[name] = None
        elif name == "problem" and isinstance(node.args[0], ast.Constant):
            entry.classes[f"HTTP {node.args[0].value!r}"] = None
        if message is not None and len(node.args) > message:
            entry.messages.update(dict.fromkeys(strings(node.args[message])))
        if "fix" in keywords:
            entry.fixes.update(dict.fromkeys(strings(keywords["fix"])))


def _add(value: ast.expr, found: dict[str, Entry]) -> None:
    for code in _codes(value):
        found.setdefault(code, Entry())


def _codes(value: ast.expr | None) -> Iterator[str]:
    if value is not None:
        yield from filter(_CODE.fullmatch, strings(value))


def name_of(value: ast.expr) -> str:
    """Return the last name of `a` or `a.b`."""
    return value.attr if isinstance(value, ast.Attribute) else str(getattr(value, "id", ""))


def strings(value: ast.expr, hole: str = "…") -> Iterator[str]:
    """Yield the possible texts of an expression: itself, or either branch of a conditional; ``hole`` for values."""
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else hole for part in parts)
        case ast.IfExp(body=one, orelse=two):
            yield from strings(one, hole)
            yield from strings(two, hole)


def errors_page() -> str:
    """Return the page."""
    written = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    tree = (errors.__doc__ or "").partition("\n\n")[2].partition("\n\nA code is")[0]
    lines = ["# Errors", "", NOTICE, "", head("errors"), "```", prose(tree), "```", "", "## Codes", ""]
    lines += ["| code | class | message | fix |", "|---|---|---|---|"]
    for code, entry in sorted(collect().items()):
        meaning, fix = written.get(code, ("", ""))
        meaning = meaning or " · ".join(list(entry.messages)[:2])
        if not meaning:
            raise ValueError(f"tools/heads/errors.toml needs a text for the code {code}")
        fix = fix or next(iter(entry.fixes), errors.FIXES.get(code, ""))
        columns = (f"`{code}`", ", ".join(entry.classes), shown(meaning), shown(fix))
        lines.append(f"| {' | '.join(map(cell, columns))} |")
    return "\n".join([*lines, ""])
