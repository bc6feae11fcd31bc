"""The generated reference pages: `python -m tools.reference --write` (or `make reference`).

| page | source |
|---|---|
| docs/reference/api.md | signatures and docstrings (`tools/python_reference.py`) |
| docs/reference/cli.md | the commands as Typer builds them |
| docs/reference/http.md | the OpenAPI document of the service |
| docs/reference/sql.md | the SQL functions that a role may call, with their comments |
| docs/reference/footprint.md | what an installation consists of (`tools/footprint.py`) |
| docs/reference/errors.md | the error codes with the texts of the source (`tools/error_reference.py`) |
| docs/reference/settings.md | environment variables, `App`, workers, `holdfast serve` |
| docs/reference/metrics.md | the Prometheus metrics of workers and of the service |

What no generator can know, the conventions of a surface, is in `tools/heads` and is placed at the top of its page.
The pages are checked in, so that they can be read without building the site. `tests/docs/test_reference.py` fails when
one is not current.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import holdfast
from holdfast import App, config
from holdfast.app.declarations import JobOptions
from tools.error_reference import errors_page
from tools.footprint import footprint_page
from tools.python_reference import (
    MAX_LINE,
    NOTICE,
    cell,
    field_notes,
    filters,
    head,
    parameter_notes,
    prose,
    python_page,
    type_text,
    value_text,
)

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "holdfast"


# -- Command line ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    import typer.main

    from holdfast.cli.commands import app

    return "\n".join(
        [
            "# Command line",
            "",
            NOTICE,
            "",
            head("cli"),
            "## Commands",
            "",
            *_command(typer.main.get_command(app), "holdfast"),
        ]
    )


def _command(command: Any, path: str) -> Iterator[str]:
    depth = path.count(" ")
    if depth:
        yield f"{'###' if depth == 1 else '####'} `{path}`"
        yield ""
        yield prose((command.help or "").partition("\f")[0])
        yield ""
    parameters = [option for option in command.params if not getattr(option, "hidden", False) and option.name != "help"]
    if parameters and not hasattr(command, "commands"):
        yield "| argument or option | default | |"
        yield "|---|---|---|"
        for option in parameters:
            yield f"| {_spelling(option)} | {_default(option)} | {cell(' '.join((option.help or '').split()))} |"
        yield ""
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("holdfast ")]
    if examples:
        yield from ("```console", *(f"$ {line}" for line in examples), "```", "")
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _command(child, f"{path} {name}")


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"`{cell(name)}`" + ("" if parameter.required else " (optional)")
    names = [*parameter.opts, *parameter.secondary_opts]
    metavar = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(f"`{name}{cell(metavar)}`" for name in names)


def _default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default is False or default in ("", (), []) or callable(default) or parameter.required:
        return ""
    if not isinstance(default, str | int | float | enum.Enum):
        return ""
    return f"`{cell(str(default.value if isinstance(default, enum.Enum) else default))}`"


# -- HTTP ------------------------------------------------------------------------------------------------------------


@functools.cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    from holdfast.server.app import make_service

    with closing(App("sqlite:///:memory:")) as app:
        return make_service(app, authenticate=lambda _: None).openapi()


def routes_page() -> str:
    api = document()
    nouns: dict[str, list[str]] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            nouns.setdefault(operation["tags"][0], []).extend(_route(method, path, operation, api))
    parts = [
        "# HTTP API",
        "",
        NOTICE,
        "",
        head("http"),
        *filters("qualifier", lambda each: f"{each.qualifier}:"),
    ]
    for noun, lines in nouns.items():
        parts += [f"## {noun.capitalize()}", "", *lines]
    return "\n".join(parts)


def _route(method: str, path: str, operation: dict[str, Any], api: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    yield ""
    scope = operation.get("x-holdfast-scope")
    yield prose(str(operation.get("description") or operation["summary"].capitalize() + "."))
    yield ""
    if scope:
        yield f"Scope: `{scope}`."
        yield ""
    rows = [
        (
            f"`{parameter['name']}` ({parameter['in']})",
            _schema_type(parameter["schema"]),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    rows += [(f"`{name}`", kind, text) for name, kind, text in _body(body, api)]
    if rows:
        yield "| parameter | type | |"
        yield "|---|---|---|"
        yield from (f"| {name} | {cell(kind)} | {cell(text)} |" for name, kind, text in rows)
        yield ""
    statuses = [status for status in operation["responses"] if status.startswith("2")]
    yield f"Success: {', '.join(statuses)}."
    yield ""


def _body(schema: dict[str, Any], api: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "$ref" in schema:
        schema = api["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    required = set(schema.get("required", []))
    for name, field in schema.get("properties", {}).items():
        kind = _schema_type(field) + (", required" if name in required else "")
        yield name, kind, str(field.get("description", ""))


def _schema_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        kinds = [_schema_type(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    return f"array of {_schema_type(schema['items'])}" if kind == "array" and "items" in schema else kind


# -- SQL -------------------------------------------------------------------------------------------------------------

_FUNCTION = re.compile(
    r"((?:^--[^\n]*\n)*)^create(?: or replace)? function (\w+)\(((?:(?!^\$\$|^create ).)*?)\)"
    r"(?:\s+returns ((?:(?!\blanguage\b).)+?))?\s+language ",
    re.DOTALL | re.MULTILINE,
)
_GRANT = re.compile(r"v_(reads|produce|execute|approve|admin)\s+text\[\] := array\[(.*?)\];", re.DOTALL)
# Files of the store whose functions belong to one section; functions of a feature have its name.
_GROUPS = {
    **dict.fromkeys(("claim", "exchange", "exchange_pick", "failure", "settle", "steps", "transition_rules"), "leases"),
    **dict.fromkeys(("enqueue", "jobs", "operators", "order", "retry_as", "views"), "jobs"),
    **dict.fromkeys(("identity", "pins", "tenancy"), "tenants"),
    **dict.fromkeys(("locks", "notify"), "locks_and_notifications"),
    "admission": "limits",
    "quarantine": "maintenance",
}
_ROLES = {"reads": "viewer", "produce": "producer", "execute": "executor", "approve": "approver", "admin": "admin"}


def sql_functions() -> dict[str, list[tuple[str, str, str, str]]]:
    """Return the file, comment, arguments and result of each function, by name."""
    functions: dict[str, list[tuple[str, str, str, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.sql")):
        if "migrations" in path.parts or "sqlite" in path.name or "sqlite" in path.parts:
            continue
        for comment, name, arguments, returns in _FUNCTION.findall(path.read_text(encoding="utf-8")):
            lines = (line.lstrip("- ").strip() for line in comment.splitlines())
            text = " ".join(line or "\n\n" for line in lines).replace(" \n\n ", "\n\n")
            group = path.parent.name if path.parent.parent.name == "features" else path.stem
            functions.setdefault(name, []).append((group, text, " ".join(arguments.split()), " ".join(returns.split())))
    # The database creates this function when a pin changes (pins.sql).
    text = "Return the tenant that the calling login is pinned to; null if it is not pinned."
    functions["pinned_tenant"] = [("pins", text, "", "text")]
    return functions


def grants() -> dict[str, list[str]]:
    """Return the roles that may call each function, by its name."""
    text = (PACKAGE / "stores" / "postgres" / "sql" / "grants.sql").read_text(encoding="utf-8")
    roles: dict[str, list[str]] = {}
    for role, names in _GRANT.findall(text):
        for name in re.findall(r"'(\w+)'", names):
            roles.setdefault(name, []).append(_ROLES[role])
    return roles


def sql_page() -> str:
    functions, roles = sql_functions(), grants()
    parts = [
        "# SQL",
        "",
        NOTICE,
        "",
        head("sql"),
    ]
    groups: dict[str, list[str]] = {}
    for name in sorted(set(roles) & set(functions)):
        for group, text, arguments, returns in functions[name]:
            groups.setdefault(_GROUPS.get(group, group), []).extend(
                _function(name, text, arguments, returns, ", ".join(dict.fromkeys(roles[name])))
            )
    for group in sorted(groups, key=lambda group: (group != "by_hand", group)):
        title = "One job at a time" if group == "by_hand" else group.replace("_", " ").capitalize()
        parts += [f"## {title}", "", *groups[group]]
    return "\n".join(parts)


def _function(name: str, text: str, arguments: str, returns: str, roles: str) -> Iterator[str]:
    tail = f" returns {returns}" if returns else ""
    call = f"{name}({arguments}){tail}"
    if len(call) > MAX_LINE:
        inside = ",\n".join(f"    {part}" for part in _split(arguments))
        call = f"{name}(\n{inside}\n){tail}" if arguments else call
    yield from (f"### `{name}`", "", f"Roles: {roles}.", "", "```sql", call, "```", "")
    if text:
        yield from (prose(text), "")


def _split(arguments: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for letter in arguments:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [*parts, current.strip()]


# -- Settings --------------------------------------------------------------------------------------------------------

# The variables of `holdfast.config`. A test compares the names with those of the module.
VARIABLES = {
    "HOLDFAST_URL": ("The database: `sqlite:///jobs.db` or `postgresql://…`.", "`App(url)`, `--url`"),
    "HOLDFAST_TENANT": ("The tenant of commands and workers.", "`App(tenant=)`, `--tenant`"),
    "HOLDFAST_ARTIFACTS": ("The artifact store: a directory, or `s3://bucket/prefix`.", "`App(artifacts=)`"),
    "HOLDFAST_KEYS": ("Encryption keys for payloads and results, `name:key,name:key`. The first one encrypts.", ""),
    "HOLDFAST_SECRET_<NAME>": ("The secret `<NAME>` of webhooks and connectors.", "`App(secrets=)`"),
    "HOLDFAST_APP_VERSION": ("The version of the application that workers report.", "`App(version=)`"),
    "HOLDFAST_LOG_DIR": ("The folder for the output of command jobs.", "`log_dir` of `app.command`"),
    "HOLDFAST_JOB_LOG_LIMIT": (
        "How much of each attempt's log is stored: a size such as `1MB`, or `0` for none. By default 256 KB.",
        "",
    ),
    "HOLDFAST_METRICS_PORT": ("The port that `holdfast probe` connects to.", "`--port`"),
    "HOLDFAST_LOG_FORMAT": ("Log lines as `text` or `json`.", "`--log-format`"),
    "HOLDFAST_STRICT": (
        "Workers refuse a database role with too many rights: `1`.",
        "`App(strict=)`, `--require-roles`",
    ),
    "HOLDFAST_EGRESS_ALLOW": ("Networks that outgoing HTTP may reach besides public addresses.", "`App(egress=)`"),
    "HOLDFAST_EGRESS_PROXY": ("The proxy for outgoing HTTP.", "`App(egress=)`"),
    "HOLDFAST_API_URL": ("The service that HTTP clients use.", "`Client(url)`"),
    "HOLDFAST_API_TOKEN": ("The API token that HTTP clients send.", "`Client(token=)`"),
    "HOLDFAST_READ_URL": ("A standby of the database, which serves what `holdfast serve` only reads.", ""),
    "HOLDFAST_DISABLE": ("Fast paths to turn off: `pipeline`, `task-pool`, separated by commas.", ""),
}
# Variables in the environment of the program of a command job.
OF_COMMANDS = {
    "HOLDFAST_JOB_ID": "The id of the job.",
    "HOLDFAST_KIND": "Its kind.",
    "HOLDFAST_ATTEMPT": "The number of the attempt, from 1.",
    "HOLDFAST_IDEMPOTENCY_KEY": "A key for calls to other systems, the same in every attempt.",
    "HOLDFAST_PAYLOAD": "The path of a file with the payload as JSON.",
}
FOREIGN = {
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY": "Credentials of an S3 artifact store.",
}


def variables() -> set[str]:
    """Return the variables that `holdfast.config` names."""
    names = {value for name, value in vars(config).items() if name.endswith("_VARIABLE")}
    return names | {f"{config.SECRET_PREFIX}<NAME>"}


def settings_page() -> str:
    parts = [
        "# Settings",
        "",
        NOTICE,
        "",
        "A value passed in code or on the command line wins over the environment. There is no configuration file.",
        "",
        "## Environment variables",
        "",
        "| variable | what it sets | in code, or as an option |",
        "|---|---|---|",
        *(f"| `{name}` | {cell(text)} | {cell(option)} |" for name, (text, option) in VARIABLES.items()),
        *(f"| `{name}` | {text} | |" for name, text in FOREIGN.items()),
        "",
        "The program of a [command job](../guides/handlers.md#command-jobs) finds these in its environment:",
        "",
        "| variable | |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in OF_COMMANDS.items()),
        "",
        "## `App`",
        "",
        *_settings_of(holdfast.App.__init__, parameter_notes(holdfast.App.__doc__)),
        "",
        "## Options of a job",
        "",
        "For `@app.job(…)`. [Python API](api.md#options-of-a-job) has the options of a single job.",
        "",
        *_settings_of(holdfast.App.job, field_notes(JobOptions)),
        "",
        "## Workers",
        "",
        "For `app.run_worker(…)`; the options of `holdfast worker` are in [Command line](cli.md#holdfast-worker).",
        "",
    ]
    from holdfast.worker.options import WorkerOptions

    parts += ["| option | type | default | |", "|---|---|---|---|"]
    notes = field_notes(WorkerOptions)
    for field in dataclasses.fields(WorkerOptions):
        default = "" if field.default is dataclasses.MISSING else f"`{cell(value_text(field.default))}`"
        note = cell(prose(notes.get(field.name, "")))
        parts.append(f"| `{field.name}` | `{cell(str(field.type))}` | {default} | {note} |")
    return "\n".join([*parts, ""])


def _settings_of(function: Callable[..., Any], notes: dict[str, str]) -> Iterator[str]:
    rows: list[tuple[str, str, str]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "function"):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            match = re.fullmatch(r"Unpack\[(\w+)\]", type_text(parameter.annotation))
            options = vars(sys.modules[function.__module__]).get(match.group(1)) if match else None
            rows += [(name, type_text(kind), "") for name, kind in (options.__annotations__ if options else {}).items()]
            continue
        default = "" if parameter.default is parameter.empty else f"`{value_text(parameter.default)}`"
        rows.append((parameter.name, type_text(parameter.annotation), default))
    yield "| option | type | default | |"
    yield "|---|---|---|---|"
    for name, kind, default in rows:
        yield f"| `{name}` | `{cell(kind)}` | {cell(default)} | {cell(prose(notes.get(name, '')))} |"


# -- Metrics ---------------------------------------------------------------------------------------------------------

_METRICS = {"Counter", "Gauge", "Histogram", "GaugeMetricFamily", "CounterMetricFamily", "_gauge"}


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, labels and description of each metric, read from the source that declares it."""
    for path in (PACKAGE / "telemetry" / "prometheus.py", PACKAGE / "server" / "metrics.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in _METRICS or len(node.args) < 2:
                continue
            name, text = node.args[:2]
            if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
                kind = getattr(node.func, "id", "").replace("MetricFamily", "").lstrip("_").capitalize()
                labels = next((keyword.value for keyword in node.keywords if keyword.arg == "labels"), None)
                labels = labels or (node.args[2] if len(node.args) > 2 else None)
                listed = ast.literal_eval(labels) if isinstance(labels, ast.List) else []
                full = str(name.value) + ("_total" if kind == "Counter" else "")
                yield full, kind, ", ".join(f"`{label}`" for label in listed), str(text.value)


def metrics_page() -> str:
    rows = sorted(set(metrics()))
    return "\n".join(
        [
            "# Metrics",
            "",
            NOTICE,
            "",
            "For Prometheus: `GET /metrics` of the service, and of a worker with `--metrics-port`.",
            "[Logs, traces and metrics](../guides/observability.md) shows how to collect them.",
            "",
            "| metric | type | labels | |",
            "|---|---|---|---|",
            *(f"| `{name}` | {kind} | {labels} | {cell(text)} |" for name, kind, labels, text in rows),
            "",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "api.md": python_page,
    "cli.md": commands_page,
    "http.md": routes_page,
    "sql.md": sql_page,
    "footprint.md": lambda: footprint_page(grants()),
    "errors.md": errors_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
}


def rendered(name: str) -> str:
    lines = [line.rstrip() for line in PAGES[name]().splitlines()]
    parts = "\n".join(lines).split("```")
    parts[::2] = (re.sub(r"\n{3,}", "\n\n", part) for part in parts[::2])  # blank lines in code stay
    return "```".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    for page in PAGES:
        path = REFERENCE / page
        if "--write" in sys.argv:
            path.write_text(rendered(page), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != rendered(page):
            sys.exit(f"{path.relative_to(ROOT)} is not current. Run: make reference")
