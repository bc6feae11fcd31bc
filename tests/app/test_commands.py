"""Command jobs (SC-14): exit code, log and artifacts of programs, and no process left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Backoff, Handle, Retry, State
from holdfast.app.internals import kinds_of, session_of
from holdfast.engine.job import Attempt
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.stores.host_files import host_name
from tests.app.processes import marked, until_gone
from tests.app.worker_process import worker_process
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads processes through /proc")

ONCE = Retry(max_attempts=1)
SLEEPER = (
    "import os, subprocess, sys, time;child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
)
MARK = "open(sys.argv[1], 'w').write(str(os.getpid()) + ' ' + str(child.pid))"


def attempt(app: App, handle: Handle[Any]) -> Attempt:
    return session_of(app).run(session_of(app).store.jobs.attempts(handle.id, handle.tenant))[-1]


def output(app: App, handle: Handle[Any]) -> str:
    """The output of the last attempt's program, wherever it is stored."""
    return app.jobs.log(handle.id, tenant=handle.tenant).text


def run(app: App, name: str, argv: Any, payload: dict[str, Any] | None = None, **settings: Any) -> Handle[Any]:
    settings.setdefault("retry", ONCE)
    kind = app.command(name, argv, **settings)
    handle = kind.enqueue(**(payload or {}))
    work_off(app)
    return handle


def python(code: str, *more: str) -> list[str]:
    return [sys.executable, "-c", code.replace("{", "{{").replace("}", "}}"), *more]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.mark.req("SC-14", "SC-5")
def test_log_and_exit_code_of_a_program_are_recorded(app: App, logs: Path) -> None:
    code = "import sys; print('to stdout'); print('to stderr', file=sys.stderr)"
    handle = run(app, "says", python(code), log_dir=logs)
    assert handle.result() == {"exit_code": 0}
    ended = attempt(app, handle)
    assert (ended.outcome, ended.exit_code) == ("succeeded", 0)
    assert sorted(output(app, handle).splitlines()) == ["to stderr", "to stdout"]
    if app.artifacts is not None:
        assert (ended.log or "").startswith("artifact://")
        assert not any(logs.iterdir()), "it moved to the artifact store"
        return
    log = Path((ended.log or "").removeprefix(f"file://{host_name()}"))
    assert log.is_relative_to(logs)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert [path.name for path in log.parent.iterdir()] == ["output.log"], "payload and empty artifacts are removed"


@pytest.mark.req("SC-14")
def test_hostile_arguments_stay_single_and_reach_no_shell(app: App, logs: Path, tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    values = [f"$(touch {marker})", f"`touch {marker}`; touch {marker}", "a b\tc", "'\"\\", "*", "", "é\n{x}"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    kind = app.command("echoes", python(code, "{one}", "--two={two}", "{number}"), log_dir=logs, retry=ONCE)
    handles = [kind.enqueue(one=value, two=value, number=-5) for value in values]
    work_off(app)
    for handle, value in zip(handles, values, strict=True):
        assert json.loads(output(app, handle)) == [value, f"--two={value}", "-5"]
    assert not marker.exists()


@pytest.mark.req("SC-14")
def test_text_that_looks_like_an_option_is_refused(app: App, logs: Path) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    open_to_it = app.command("guarded", python(code, "{name}"), log_dir=logs)
    operands = app.command("operands", python(code, "--", "{name}"), log_dir=logs)
    refused, taken = open_to_it.enqueue(name="--output=/etc/passwd"), operands.enqueue(name="--output=x")
    work_off(app)
    job = refused.get()
    assert (job.state, job.attempt, job.error_code) == (State.DEAD_LETTER, 1, "invalid_arguments")
    assert json.loads(output(app, taken)) == ["--", "--output=x"]


@pytest.mark.req("SC-14")
def test_function_can_build_the_command_line(app: App, logs: Path) -> None:
    def resize(source: str, width: int = 200) -> list[str]:
        return [sys.executable, "-c", "import sys; print(sys.argv[1:])", source, f"{width}x"]

    kind = app.command("resize", resize, log_dir=logs)
    handle = kind.enqueue("a.png")
    with pytest.raises(InvalidArguments):
        kind.enqueue("a.png", width="wide")  # type: ignore[arg-type]
    work_off(app)
    assert output(app, handle) == "['a.png', '200x']\n"
    assert handle.result() == {"exit_code": 0}, "not the list that the function returned"


@pytest.mark.req("SC-14")
def test_invalid_command_declarations_are_refused(app: App) -> None:
    templates: list[Any] = [
        [],
        "rm -rf {x}",
        ["{program}"],
        ["a", "{x.y}"],
        ["a", "{}"],
        ["a", "{x!r}"],
        ["a", "{x"],
        [1],
    ]
    for template in templates:
        with pytest.raises(InvalidSetting) as refused:
            app.command("bad", template)
        assert refused.value.code == "invalid_command", template
    for settings in ({"stdin": "tty"}, {"ok_exit_codes": (0, 3), "reject_exit_codes": (3,)}, {"fields": {"y": int}}):
        with pytest.raises(InvalidSetting):
            app.command("bad", ["a", "{x}"], **settings)
    assert kinds_of(app) == {}
    typed = app.command("typed", ["a", "{width}"], fields={"width": int})
    for wrong in ({"width": "wide"}, {}, {"width": 1, "height": 2}):
        with pytest.raises(InvalidArguments):
            typed.enqueue(**wrong)


@pytest.mark.req("SC-14", "SC-5")
def test_exit_codes_map_to_outcomes(app: App, logs: Path) -> None:
    code = (
        "import sys; print('reading', file=sys.stderr); status = int(sys.argv[1])\n"
        "sys.exit('it \\x1b[31mbroke' if status == 1 else status)"
    )
    kind = app.command(
        "exits",
        python(code, "{code}"),
        log_dir=logs,
        ok_exit_codes=(0, 3),
        reject_exit_codes=(65,),
        retry=Retry(max_attempts=2, backoff=Backoff(base=60, jitter=False)),
    )
    fine, wrong, hopeless = (kind.enqueue(code=number) for number in (3, 1, 65))
    work_off(app)
    assert fine.result() == {"exit_code": 3}
    assert (wrong.get().state, wrong.get().error_code) == (State.RETRY_WAITING, "exit_code")
    assert wrong.get().error_message == "the program ended with exit code 1: reading | it  [31mbroke"
    assert (hopeless.get().state, attempt(app, hopeless).exit_code) == (State.DEAD_LETTER, 65)
    assert attempt(app, wrong).exit_code == 1


@pytest.mark.req("SC-14")
def test_program_killed_by_a_signal_fails(app: App, logs: Path) -> None:
    handle = run(app, "dies", python("import os; os.kill(os.getpid(), 11)"), log_dir=logs)
    job = handle.get()
    assert (job.state, job.error_code, job.crashes) == (State.DEAD_LETTER, "killed_by_signal", 0)
    assert "11 (SIGSEGV)" in (job.error_message or "")
    assert attempt(app, handle).exit_code == -11


@pytest.mark.req("SC-14", "DP-22")
def test_program_that_cannot_start_is_reported(app: App, logs: Path, tmp_path: Path) -> None:
    missing = run(app, "missing", ["no-such-program-here"], log_dir=logs)
    nowhere = run(app, "nowhere", ["true"], log_dir=logs, cwd=tmp_path / "nowhere")
    for handle in (missing, nowhere):
        assert handle.get().error_code == "command_not_started"
        assert "not started" in output(app, handle)


@pytest.mark.req("SC-14", "DP-22")
def test_unusable_log_directory_is_reported(app: App, tmp_path: Path) -> None:
    missing = run(app, "missing", ["true"], log_dir=tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    no_folder = run(app, "file", ["true"], log_dir=tmp_path / "file")
    for handle in (missing, no_folder):
        assert handle.get().error_code == "log_dir_unusable"
    assert not (tmp_path / "nowhere").exists(), "a configured directory is not created"


@pytest.mark.req("SC-14")
def test_default_log_directory_is_in_the_users_state_folder(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_LOG_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    where = ["sh", "-c", "echo $HOLDFAST_PAYLOAD"]
    handle = run(app, "first", where)
    assert Path(output(app, handle)).is_relative_to(tmp_path / "state" / "holdfast" / "commands")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOLDFAST_LOG_DIR", str(tmp_path / "elsewhere"))
    other = run(app, "second", where)
    assert Path(output(app, other)).is_relative_to(tmp_path / "elsewhere")


@pytest.mark.req("SC-14")
def test_output_beyond_the_log_limit_is_cut_with_a_notice(app: App, logs: Path) -> None:
    handle = run(
        app, "chatty", python("print('x' * 99, end=''); print('y' * 5_000_000)"), log_dir=logs, log_limit="1KB"
    )
    assert handle.result() == {"exit_code": 0}, "the program was not blocked"
    text = output(app, handle)
    assert text.startswith("x" * 99 + "y" * 925 + "\n[holdfast: the log was cut here, after 1,024 bytes]\n")
    assert text.endswith("[holdfast: 4,999,076 more bytes were not kept]\n")


@pytest.mark.req("SC-14")
def test_environment_is_minimal_and_describes_the_job(app: App, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hunter2")
    monkeypatch.setenv("WANTED", "yes")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    handle = run(app, "env", python(code), log_dir=logs, env={"GIVEN": "1"}, inherit=["WANTED", "NOT_THERE"])
    seen = json.loads(output(app, handle))
    seen.pop("LC_CTYPE", None)  # set by Python in a program without a locale
    ours = {name: value for name, value in seen.items() if name.startswith("HOLDFAST_")}
    usual = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"}
    assert seen.keys() - ours.keys() - usual == {"GIVEN", "WANTED"}
    folder = f"{logs}/{handle.id[:8]}/{handle.id}/1"
    assert ours == {
        "HOLDFAST_JOB_ID": handle.id,
        "HOLDFAST_KIND": "env",
        "HOLDFAST_TENANT": "default",
        "HOLDFAST_ATTEMPT": "1",
        "HOLDFAST_IDEMPOTENCY_KEY": f"default:env:{handle.id}",
        "HOLDFAST_PAYLOAD": f"{folder}/payload.json",
        "HOLDFAST_ARTIFACTS": f"{folder}/artifacts",
    }


@pytest.mark.req("SC-14")
def test_payload_is_in_a_file_and_optionally_on_stdin(app: App, logs: Path, tmp_path: Path) -> None:
    code = "import os, sys; print(open(os.environ['HOLDFAST_PAYLOAD']).read()); print(sys.stdin.read())"
    argv = python(code, "{text}")
    piped = run(app, "piped", argv, {"text": "ü"}, log_dir=logs, stdin="payload", cwd=tmp_path)
    assert output(app, piped) == '{"text":"ü"}\n{"text":"ü"}\n'
    alone = run(app, "alone", argv, {"text": "ü"}, log_dir=logs)
    assert output(app, alone) == '{"text":"ü"}\n\n'


@pytest.mark.req("SC-14")
def test_known_secrets_are_hidden_in_messages(app: App, logs: Path) -> None:
    code = "import os, sys; sys.exit(f'cannot log in as {os.environ[\"API_TOKEN\"]} at postgresql://ada:hunter2@db/x')"
    handle = run(app, "leaks", python(code), log_dir=logs, env={"API_TOKEN": "canary-1234"})
    message = handle.get().error_message or ""
    assert message.endswith("cannot log in as [hidden] at postgresql://[hidden]@db/x")


@pytest.mark.req("SC-14", "SC-5")
@pytest.mark.parametrize("status", [0, 1])
def test_files_left_by_a_program_become_artifacts(app: App, logs: Path, status: int) -> None:
    code = (
        "import os, sys; from pathlib import Path; folder = Path(os.environ['HOLDFAST_ARTIFACTS'])\n"
        "(folder / 'a.bin').write_bytes(b'\\x00' * 70_000); (folder / 'sub').mkdir()\n"
        "(folder / 'sub' / 'b.txt').write_text('b')\n"
        f"(folder / 'link').symlink_to('/etc/passwd'); os.mkfifo(folder / 'pipe'); sys.exit({status})"
    )
    handle = run(app, "makes", python(code), log_dir=logs)
    artifacts = session_of(app).run(session_of(app).store.jobs.artifacts(handle.id, "default"))
    assert [(each.name, each.attempt, each.meta["size"]) for each in artifacts] == [
        ("a.bin", 1, 70_000),
        ("sub/b.txt", 1, 1),
    ]
    for each in artifacts:
        content = app.jobs.artifact(handle.id, each.name)
        assert hashlib.sha256(content).hexdigest() == each.meta["sha256"]
    if status == 0:
        assert handle.result() == {"exit_code": 0, "artifacts": ["a.bin", "sub/b.txt"]}


@pytest.mark.slow
@pytest.mark.req("SC-14", "CX-11")
def test_timeout_kills_the_whole_process_group(app: App, logs: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)"
    code = f"{SLEEPER} {deaf}; {MARK}; time.sleep(600)"
    handle = run(app, "deaf", python(code, str(marks)), log_dir=logs, timeout=3.0, kill_after=0.2)
    until_gone(*marked(marks))
    job = handle.get()
    assert (job.state, job.error_code) == (State.DEAD_LETTER, "timeout")
    assert output(app, handle) == "deaf\n"


@pytest.mark.slow
@pytest.mark.req("SC-14", "CX-11")
def test_program_can_clean_up_before_it_is_killed(app: App, logs: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); print('ready', flush=True)\n"
        "try: time.sleep(600)\nfinally: print('put away')"
    )
    handle = run(app, "polite", python(code), log_dir=logs, timeout=3.0, kill_after=10)
    ended = attempt(app, handle)
    assert (ended.error_code, ended.exit_code) == ("timeout", 42)
    assert output(app, handle) == "ready\nput away\n"


@pytest.mark.req("SC-14", "CX-11")
def test_cancelling_a_running_job_ends_its_program(app: App, logs: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    polite = "import signal; signal.signal(15, lambda *_: sys.exit(print('put away', flush=True)))"
    kind = app.command("sleeps", python(f"{SLEEPER} {polite}; {MARK}; time.sleep(600)", str(marks)), log_dir=logs)
    with working(app):
        handle = kind.using(retry=ONCE).enqueue()
        pids = marked(marks)
        handle.cancel("not wanted any more")
        until_gone(*pids)
    assert handle.state() is State.CANCELLED
    (log,) = logs.rglob("output.log")
    assert log.read_text() == "put away\n"


@pytest.mark.req("SC-14", "SC-13", "CX-11")
def test_stopping_worker_ends_its_programs(app: App, logs: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    code = f"{SLEEPER} {MARK}; time.sleep(600)"
    kind = app.command("sleeps", python(code, str(marks)), log_dir=logs)
    with working(app, grace=0.0) as background:
        handle = kind.enqueue()
        pids = marked(marks)
        background.ask_to_stop()
    until_gone(*pids)
    assert handle.get().state in (State.RETRY_WAITING, State.QUEUED)  # due at once
    assert handle.get().retries == 0


@pytest.mark.req("SC-14")
def test_processes_left_by_a_program_end_with_its_attempt(app: App, logs: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    code = f"{SLEEPER} {MARK}"
    handle = run(app, "forgets", python(code, str(marks)), log_dir=logs)
    assert handle.result() == {"exit_code": 0}, "even though its output was still open"
    until_gone(*marked(marks))


@pytest.mark.slow
@pytest.mark.req("SC-14", "CX-15", "SC-5", "SC-21")
def test_killed_worker_takes_its_programs_along_and_keeps_their_logs(
    app: App, url: str, logs: Path, tmp_path: Path
) -> None:
    session_of(app).make_ready()
    sleeps = app.enqueue("sleeps", {"marks": str(tmp_path / "marks")})
    logging_job = app.enqueue("logs", {})
    with worker_process("tests.app.killable_jobs", url, tmp_path, HOLDFAST_LOG_DIR=str(logs)) as victim:
        pids = marked(tmp_path / "marks")
        until(lambda: "begun" in logging_job.log().text, "lines are written while it runs")
        assert output(app, sleeps) == "begun\n", "program output is written while it runs"
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(timeout=10)
        until_gone(*pids)
    assert output(app, sleeps) == "begun\n"
    assert output(app, logging_job).endswith("INFO    begun\n")
    assert (attempt(app, sleeps).log or "").startswith(f"file://{host_name()}{logs}/")


@pytest.mark.req("SC-14")
def test_odd_artifact_names_do_not_change_the_outcome(app: App, logs: Path) -> None:
    """Two names that become equal as text, and a file that disappears before it is read."""
    code = (
        "import os; os.chdir(os.environb[b'HOLDFAST_ARTIFACTS']);"
        "[open(name, 'w').close() for name in (b'\\xff', b'\\xfe', b'a' * 250 + b'1')]; os.makedirs(b'b' * 250);"
        "open(b'b' * 250 + b'/' + b'c' * 250, 'w').close(); open(b'b' * 250 + b'/' + b'c' * 249 + b'd', 'w').close()"
    )
    handle = run(app, "odd", python(code), log_dir=logs)
    assert handle.state() is State.SUCCEEDED
    names = handle.result()["artifacts"]
    assert len(set(names)) == len(names) == 5


@pytest.mark.req("SC-14")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGQUIT, signal.SIGTERM])
def test_program_can_signal_its_own_process_group(app: App, logs: Path, number: signal.Signals) -> None:
    code = f"import os, signal; signal.signal({int(number)}, lambda *_: None); os.kill(0, {int(number)})"
    handle = run(app, "signals", python(code), log_dir=logs)
    assert (handle.state(), handle.result()) == (State.SUCCEEDED, {"exit_code": 0})
