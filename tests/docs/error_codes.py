"""The stable codes, collected from the source: of errors, of responses and of the ledger.

The source is parsed, not imported. Codes come from: `code="…"` in a call, a parameter `code` with a default,
`default_code` of an error class, a helper that takes the code as an argument, a variable `code` or `reason`, the table
of `REASONS`, and literals in SQL.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.source_texts import PACKAGE, name_of, strings

# Calls whose arguments are codes: the name, and the position of the code.
HELPERS = {
    "_refusal": 0,  # engine/payload.py
    "_whole": 4,  # engine/retry.py
    "Reject": 0,  # engine/outcome.py: the error code of a final failure
    "DeliveryVerdict": 1,  # features/webhooks/model.py
    "Failed": 0,  # engine/outcome.py: the error code of an attempt
    "Crashed": 0,  # the same, for a process that died
    "Snoozed": 1,  # the reason of a snooze
    "Enqueued": 2,  # the reason why no job was created
    "Verdict": 3,  # the reason of a refusal
    "show": 0,  # cli/failures.py
    "problem": 1,  # server/problems.py
}
_CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_SQL = re.compile(
    r"""(?:error_code\ *(?:=|:=)|reason'?,|reason"?\ *(?::=|:)|refusal|then|else|true,|select\ null.*,|not\ v_\w+\ then)
        \ *["']([a-z]+(?:_[a-z]+)+)["']""",
    re.VERBOSE,
)
# Words of SQL that match but are not codes: states, columns and classes.
NO_CODES = {"safe_metadata", "in_progress", "retry_waiting", "dead_letter", "waiting_for_approval", "max_attempts"}


def collect() -> set[str]:
    codes = {code for path in PACKAGE.rglob("*.py") for code in python_codes(path.read_text(encoding="utf-8"))}
    # transition_rules.sql names constraints of rows; their code is broken_invariant.
    files = [path for path in PACKAGE.rglob("*.sql") if "migrations" not in path.parts]
    files = [path for path in files if path.name != "transition_rules.sql"]
    sql = [path.read_text(encoding="utf-8") for path in files]
    sql += [path.read_text(encoding="utf-8") for path in (PACKAGE / "stores" / "sqlite").rglob("*.py")]
    codes |= {match for text in sql for match in _SQL.findall(text)} - NO_CODES
    return codes


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
            case ast.Assign(targets=[ast.Name(id="reason" | "code" | "RETRY_REQUESTED")], value=value):
                yield from _texts(value)
            case ast.Assign(targets=[ast.Name(id="REASONS")], value=ast.Dict(keys=keys)):
                yield from (code for key in keys if key is not None for code in _texts(key))
            case ast.AnnAssign(target=ast.Name(id="OURS"), value=ast.Dict(values=values)):
                for pair in values:
                    yield from _texts(pair.elts[1]) if isinstance(pair, ast.Tuple) else ()


def _in_call(node: ast.Call) -> Iterator[ast.expr]:
    yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
    position = HELPERS.get(name_of(node.func))
    if position is not None and len(node.args) > position:
        yield node.args[position]


def _texts(value: ast.expr) -> Iterator[str]:
    yield from filter(_CODE.fullmatch, strings(value))
