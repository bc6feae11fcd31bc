"""Conventions of every command: exit codes, output streams, and no traceback for expected errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as package
from holdfast import errors
from holdfast.cli.failures import exit_code
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, error_of
from tests.cli.processes import COMMAND, environment, run, started
from tests.support.stores import put_one
from tests.support.waiting import until

COMMANDS = (
    ("migrate",),
    ("uninstall",),
    ("worker",),
    ("tick",),
    ("enqueue",),
    ("send-event",),
    ("top",),
    ("health",),
    ("doctor",),
    ("probe",),
    ("roles",),
    ("events",),
    ("why",),
    ("bench",),
    ("replay",),
    ("demo",),
    *(("pause",), ("resume",), ("pauses",), ("restore-check",)),
    *(("serve",), ("mcp",), ("dev",), ("tokens",)),
    *(("tokens", name) for name in ("issue", "list", "revoke")),
    ("jobs",),
    *(("jobs", name) for name in ("list", "count", "show", "history", "log", "artifact")),
    *(
        ("jobs", name)
        for name in ("cancel", "redrive", "discard", "replace-payload", "reschedule", "move", "fork", "export-history")
    ),
    ("jobs", "set-external-ref"),
    *(("jobs", name) for name in ("search", "index", "indexes")),
    ("dead-letters",),
    *(("dead-letters", name) for name in ("list", "show", "note", "redrive", "discard")),
    ("operations",),
    *(("operations", name) for name in ("start", "list", "show", "cancel", "wait")),
    ("approvals",),
    *(("approvals", name) for name in ("list", "show", "approve", "deny", "token")),
    ("agents",),
    *(("agents", name) for name in ("list", "show", "set", "disable", "enable")),
    ("schedules",),
    *(("schedules", name) for name in ("list", "show", "add", "edit", "pause", "resume", "run", "preview")),
    *(("schedules", name) for name in ("history", "remove")),
    ("templates",),
    *(("templates", name) for name in ("list", "show", "versions", "set", "remove", "enqueue")),
    ("workers",),
    *(("workers", name) for name in ("list", "drain", "stop")),
    ("versions",),
    *(("versions", name) for name in ("list", "held", "patches", "move")),
    ("workflows",),
    *(("workflows", name) for name in ("list", "show", "graph", "cancel", "resume")),
    ("limits",),
    *(("limits", name) for name in ("list", "show", "set", "remove")),
    ("reservations",),
    *(("reservations", name) for name in ("list", "show", "release")),
    ("queues",),
    *(("queues", name) for name in ("list", "set-aging")),
    ("subscriptions",),
    *(("subscriptions", name) for name in ("list", "show", "set", "pause", "resume", "remove", "deliveries")),
    ("consumers",),
    *(("consumers", name) for name in ("list", "reset", "remove")),
    ("connectors",),
    *(("connectors", name) for name in ("list", "show", "set", "remove")),
    ("webhooks",),
    *(("webhooks", name) for name in ("list", "show", "add", "set", "rotate-secret", "disable", "enable", "remove")),
    *(("webhooks", name) for name in ("test", "deliveries", "resend", "secret")),
    ("executors",),
    *(("executors", name) for name in ("list", "set", "remove")),
    ("kinds",),
    *(("kinds", name) for name in ("list", "show", "register", "set", "remove")),
    ("event-types",),
    *(("event-types", name) for name in ("list", "show", "set", "remove")),
    ("policies",),
    *(("policies", name) for name in ("show", "set", "unregistered")),
    ("payload-rules",),
    *(("payload-rules", name) for name in ("list", "show", "set", "remove", "effective", "check")),
    ("keys",),
    *(("keys", name) for name in ("list", "generate", "rotate")),
    ("tenants",),
    *(
        ("tenants", name)
        for name in ("list", "show", "set", "remove", "fair-queues", "pin", "unpin", "pins", "registered-only")
    ),
    ("retention",),
    *(("retention", name) for name in ("list", "set", "remove", "preview", "sweep", "remove-orphans")),
    ("usage",),
    ("archives",),
    *(("archives", name) for name in ("list", "run", "verify", "show", "read")),
    ("audit",),
    *(("audit", name) for name in ("verify", "show", "actions", "export", "anchor", "seal")),
)
GROUPS = (
    ("tokens",),
    *(("jobs",), ("approvals",), ("agents",), ("schedules",), ("templates",), ("workflows",)),
    *(("workers",), ("versions",), ("dead-letters",), ("operations",)),
    *(("limits",), ("reservations",), ("queues",), ("subscriptions",), ("consumers",), ("executors",)),
    *(("payload-rules",), ("keys",), ("kinds",), ("event-types",), ("policies",)),
    ("tenants",),
    *(("webhooks",), ("connectors",)),
    ("retention",),
    ("archives",),
    ("audit",),
)
UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidPayload("x"), 2),
        (errors.InvalidArguments("x"), 2),
        (errors.InvalidSetting("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.Conflict("x"), 4),
        (errors.StaleLease("x"), 4),
        (errors.IllegalTransition("x"), 4),
        (errors.Refused("x"), 4),
        (errors.JobFailed("x"), 1),
        (errors.WaitTimeout("x"), 1),
        (errors.StoreUnavailable("x"), 1),
        (errors.SchemaMismatch("x"), 1),
    ],
)
def test_error_class_decides_exit_code(error: errors.HoldfastError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.slow
@pytest.mark.req("ARCH")
def test_version_is_printed() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {package.__version__}\n", "")


@pytest.mark.req("ARCH")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_json_and_an_example(bare: Holdfast, command: tuple[str, ...]) -> None:
    result = bare(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: holdfast" in result.stdout
    assert command in GROUPS or (
        "--json" in result.stdout and "holdfast " + " ".join(command) in examples(result.stdout)
    )


def examples(help_text: str) -> str:
    return help_text.partition("Examples:")[2]


@pytest.mark.req("ARCH")
def test_help_of_each_command_fits_in_command_list(bare: Holdfast) -> None:
    result = bare("--help").stdout
    assert not [line for line in result.partition("Commands:")[2].splitlines() if line.endswith("...")]


@pytest.mark.req("ARCH")
def test_list_of_commands_in_this_file_is_complete(bare: Holdfast) -> None:
    def commands(*group: str) -> list[tuple[str, ...]]:
        result = bare(*group, "--help").stdout
        listed = result[result.index("Commands:") :].splitlines()[1:]
        names = [line.split()[0] for line in listed[: [*listed, ""].index("")]]
        return [(*group, name) for name in names]

    existing = [*commands(), *(command for group in GROUPS for command in commands(*group))]
    assert sorted(existing) == sorted(COMMANDS)


@pytest.mark.slow
@pytest.mark.req("ARCH")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast appr", ["approvals"]),
        ("holdfast approvals ", ["list", "show", "approve", "deny", "token"]),
        ("holdfast approvals list --state w", ["withdrawn"]),
        ("holdfast jobs list --state re", ["retry_waiting"]),
    ],
)
def test_shell_completion_offers_commands_and_values(typed: str, offered: list[str]) -> None:
    completing = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [Path(sys.executable).with_name("holdfast")],
        env=environment() | completing,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == offered


@pytest.mark.slow
@pytest.mark.req("ARCH")
def test_missing_cli_extra_is_named_in_one_line() -> None:
    script = "import sys; sys.modules['typer'] = None; from holdfast.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'holdfast[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.req("ARCH")
def test_package_imports_without_cli_libraries() -> None:
    script = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import holdfast, holdfast.features.jobs.store;"
        "holdfast.App('sqlite:///:memory:').enqueue('x')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.req("ARCH")
def test_command_line_imports_without_server_libraries() -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['starlette', 'fastapi', 'uvicorn', 'jinja2']));"
        "import holdfast.cli.commands"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("jobs", "list"), "missing_url"),
        (("jobs", "list", "--url", "mysql://x"), "invalid_url"),
        (("jobs", "list", "--url", "sqlite:///"), "invalid_url"),
        (("jobs", "list", "--no-such-option"), "usage"),
        (("jobs", "list", "--limit", "0"), "usage"),
        (("jobs", "list", "--state", "lost"), "usage"),
        (("jobs", "show"), "usage"),
        (("no-such-command",), "usage"),
        (("dev", "no-such-file.py"), "module_not_found"),
        (("health", "--tenant", "a", "--all-tenants", "--url", "sqlite:///x.db"), "conflicting_options"),
        (("health", "--tenant", "*", "--url", "sqlite:///x.db"), "invalid_name"),
        (("health", "--url", "postgresql://h/d", "--schema", 'a"; drop'), "invalid_schema"),
    ],
)
def test_usage_error_exits_with_2(bare: Holdfast, arguments: tuple[str, ...], code: str) -> None:
    result = bare(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert f"[{code}]" in result.stderr
    as_json = bare(*arguments, "--json")
    assert as_json.exit_code == 2
    assert error_of(as_json)["code"] == code


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("beat",), "Workers fire schedules; there is no beat process. List them: holdfast schedules list."),
        (("purge",), "Cancel waiting jobs: holdfast operations start cancel"),
        (("flower",), "holdfast serve MODULE:APP"),
        (("inspect",), "holdfast workers list"),
        (("-A", "shop", "worker"), "holdfast worker shop.jobs:app"),
        (("worker", "-A", "shop"), "holdfast worker shop.jobs:app"),
        (("worker", "shop:app", "-Q", "mail"), "Use --queues mail,default"),
        (("worker", "shop:app", "--queue", "mail"), "Use --queues mail,default"),
        (("worker", "shop:app", "-c", "4"), "Use --concurrency N"),
        (("tokens", "create"), "Use: holdfast tokens issue. Commands: issue, list, revoke."),
        (("schedules", "create"), "Use: holdfast schedules add."),
        (("schedules", "delete"), "Use: holdfast schedules remove."),
        (("limits", "set", "call_api", "--rate", "5/s"), "--kind call_api"),
        (("jobs", "list", "--state", "dead"), "Did you mean dead_letter?"),
    ],
)
def test_a_wrong_command_or_option_names_the_right_one(bare: Holdfast, arguments: tuple[str, ...], fix: str) -> None:
    result = bare(*arguments)
    assert result.exit_code == 2
    error, line = result.stderr.splitlines()
    assert "Did you mean" not in error
    assert "Value error" not in error
    assert fix in line


@pytest.mark.req("ARCH")
def test_no_arguments_print_help(bare: Holdfast) -> None:
    result = bare()
    assert result.exit_code == 2
    assert "Usage: holdfast" in result.output


@pytest.mark.req("SC-1")
@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "list"),
        ("jobs", "show", UNKNOWN),
        ("jobs", "cancel", UNKNOWN),
        ("health",),
        ("doctor",),
        ("events",),
        ("send-event", "paid"),
        ("approvals", "list"),
        *(("approvals", name, UNKNOWN) for name in ("show", "approve", "deny", "token")),
    ],
    ids=" ".join,
)
def test_reading_commands_create_no_database_file(bare: Holdfast, tmp_path: Path, command: tuple[str, ...]) -> None:
    result = bare(*command, "--url", f"sqlite:///{tmp_path}/typo.db", "--json")
    assert result.exit_code == 3
    assert error_of(result)["code"] == "no_database"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("SC-1")
def test_reading_commands_create_no_tables(bare: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "other.db").touch()
    result = bare("jobs", "list", "--url", f"sqlite:///{tmp_path}/other.db", "--json")
    assert result.exit_code == 1
    assert error_of(result) == {
        "code": "not_migrated",
        "message": "the Holdfast tables are not in this database",
        "fix": "Run: holdfast migrate",
    }


@pytest.mark.req("DP-22")
def test_database_without_tables_is_reported(bare: Holdfast, empty_postgres_url: str) -> None:
    for command in (("jobs", "list"), ("enqueue", "mail"), ("health",), ("approvals", "list"), ("send-event", "paid")):
        result = bare(*command, "--url", empty_postgres_url, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (1, "not_migrated")


@pytest.mark.req("DP-22")
def test_unreachable_server_is_reported_at_once(bare: Holdfast) -> None:
    result = bare("jobs", "list", "--url", "postgresql://nobody:geheim@127.0.0.1:1/none")
    assert result.exit_code == 1
    assert "[store_unavailable]" in result.stderr
    assert "geheim" not in result.output


@pytest.mark.req("DP-22")
def test_file_that_is_not_a_database_is_reported(bare: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all, " * 100)
    result = bare("jobs", "list", "--url", f"sqlite:///{tmp_path}/notes.txt", "--json")
    assert result.exit_code == 1
    assert error_of(result)["code"] in {"not_a_database", "store_unavailable"}


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_argument_that_is_not_utf_8_is_rejected(sqlite_url: str) -> None:
    done = run("enqueue", b"caf\xe9", url=sqlite_url)
    assert done.returncode == 2
    assert "not valid UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_ctrl_c_exits_with_130(store: Store, tmp_path: Path) -> None:
    put_one(store)
    with started(["events", "--follow"], cwd=tmp_path, url=store.url) as process:
        assert process.stdout is not None
        assert "enqueue" in process.stdout.readline()  # it is running, and waits for more
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in messages


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_closed_stdout_causes_no_traceback(sqlite_url: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "migrate", "--sql", "--url", sqlite_url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        messages = process.stderr.read()
    assert b"Traceback" not in messages
    until(lambda: process.poll() is not None, "the process has ended")
