"""The stable codes, collected from the source: what errors carry, what answers say, what the ledger keeps.

The source is read, not imported. These places can bring a code into the world: `code="…"` in a call, a parameter
`code` with a default, `default_code` of an error class, a helper that takes the code as an argument, a variable `code`
or `reason`, the table of `REASONS`, a literal in SQL.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "holdfast"

# Calls whose arguments are codes: the name, and where the code stands.
HELPERS = {
    "_refusal": 0,  # engine/payload.py
    "_whole": 4,  # engine/retry.py
    "Reject": 0,  # engine/outcome.py: an attempt's error code, for good
    "Fate": 1,  # features/webhooks/model.py
    "Failed": 0,  # engine/outcome.py: an attempt's error code
    "Crashed": 0,  # the same, where its process died
    "Snoozed": 1,  # the reason of a step without an error
    "Enqueued": 2,  # the reason why no job was made
    "Verdict": 3,  # the reason why an operator was refused
    "show": 0,  # cli/failures.py
    "problem": 1,  # server/problems.py
}
_CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_SQL = re.compile(
    r"""(?:error_code\ *(?:=|:=)|reason'?,|reason"?\ *(?::=|:)|refusal|then|else|true,|select\ null.*,|not\ v_\w+\ then)
        \ *["']([a-z]+(?:_[a-z]+)+)["']""",
    re.VERBOSE,
)
# Words of SQL in the places where a code may stand, that are none: states, columns and classes.
NO_CODES = {"safe_metadata", "in_progress", "retry_waiting", "dead_letter", "waiting_for_approval", "max_attempts"}


def collect() -> set[str]:
    found = {code for path in PACKAGE.rglob("*.py") for code in python_codes(path.read_text(encoding="utf-8"))}
    # What the judge names are rules of rows: their code is broken_invariant.
    laid = [path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts]
    laid = [path for path in laid if path.name != "transition_rules.sql"]
    sql = [path.read_text(encoding="utf-8") for path in laid]
    sql += [path.read_text(encoding="utf-8") for path in (PACKAGE / "stores" / "sqlite").rglob("*.py")]
    found |= {match for text in sql for match in _SQL.findall(text)} - NO_CODES
    return found


def python_codes(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call():
                for value in _in_call(node):
                    yield from _texts(value)
            case ast.FunctionDef(args=ast.arguments(kwonlyargs=named, kw_defaults=defaults)):
                for parameter, default in zip(named, defaults, strict=True):
                    if parameter.arg == "code" and default is not None:
                        yield from _texts(default)
            case ast.AnnAssign(target=ast.Name(id="default_code"), value=ast.expr() as value):
                yield from _texts(value)
            case ast.Assign(targets=[ast.Name(id="default_code")], value=value):
                yield from _texts(value)
            case ast.Assign(targets=[ast.Name(id="reason" | "code")], value=value):
                yield from _texts(value)
            case ast.Assign(targets=[ast.Name(id="REASONS")], value=ast.Dict(keys=keys)):
                yield from (code for key in keys if key is not None for code in _texts(key))
            case ast.AnnAssign(target=ast.Name(id="OURS"), value=ast.Dict(values=values)):
                for pair in values:
                    yield from _texts(pair.elts[1]) if isinstance(pair, ast.Tuple) else ()


def _in_call(node: ast.Call) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    place = HELPERS.get(name)
    if place is not None and len(node.args) > place:
        yield node.args[place]


def _texts(value: ast.expr) -> Iterator[str]:
    """The strings an expression can be: itself, or either arm of a conditional."""
    match value:
        case ast.Constant(value=str() as text) if _CODE.fullmatch(text):
            yield text
        case ast.IfExp(body=one, orelse=two):
            yield from _texts(one)
            yield from _texts(two)
