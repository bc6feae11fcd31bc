"""``ctx.log`` and program output: stored with the attempt, readable from any host, deleted with the job."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App, PayloadPolicy, Retry, State
from holdfast.app.internals import session_of
from holdfast.engine.retry import fixed
from holdfast.errors import InvalidSetting, NotFound, Refused
from holdfast.features.attempts.model import LogPart, decode_log
from holdfast.features.payloads.operations import rotate
from holdfast.stores import host_files
from holdfast.stores.vault import new_key
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

CANARY = "canary-92817"
ONCE = Retry(max_attempts=1)


def stored_lines(app: App) -> list[Any]:
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        return list(
            by_hand.execute("select job_id, attempt, n, lines, ref from attempt_log order by job_id, attempt, n")
        )


@pytest.mark.req("SC-20", "SC-21", "SC-5")
def test_handler_log_is_stored_per_attempt_without_secrets(app: App) -> None:
    @app.job(retry=Retry(max_attempts=2, backoff=fixed(0.01)))
    async def pay(ctx: holdfast.Context, token: str) -> None:
        ctx.log.info("attempt %s with %s", ctx.attempt, token)
        ctx.log.debug("not kept unless the logger is enabled for it")
        ctx.log.warning("arguments that do not fit: %s %s", 1)
        ctx.log.info("two\nlines are one, and \x1b[31mno colours")
        if ctx.attempt == 1:
            try:
                raise ValueError(f"no {token}")
            except ValueError:
                ctx.log.exception("went wrong")
            raise RuntimeError("again")

    handle = pay.enqueue("sesame-open-4711")
    with working(app):
        until(lambda: handle.state().finished, "the job has ended")
    first, second = handle.log(1), handle.log()
    assert (first.attempt, second.attempt, first.ended, first.more, first.ref) == (1, 2, True, False, None)
    lines = first.text.splitlines()
    assert lines[0].endswith("Z INFO    attempt 1 with [redacted]")
    assert "two lines are one, and [31mno colours" in lines[2]
    assert lines[3].endswith("ERROR   went wrong")
    assert lines[-1] == "ValueError: no [redacted]"
    assert second.text.count("\n") == 3
    assert "sesame" not in first.text + second.text
    tried = app.jobs.attempts(handle.id)
    assert [(each.outcome, each.log, each.payload) for each in tried] == [
        ("failed", "database", {"token": "sesame-open-4711"}),
        ("succeeded", "database", {"token": "sesame-open-4711"}),
    ]
    assert app.jobs.log(handle.id, 1, offset=first.size - 5).text == "ted]\n"
    assert app.jobs.log(handle.id, 1, tail=40).text == lines[-1] + "\n"
    for wrong in ({"attempt": 3}, {"attempt": 0}):
        with pytest.raises(NotFound, match="has no attempt"):
            handle.log(**wrong)
    for bad in ({"attempt": "1"}, {"offset": -1}, {"tail": 1.5}, {"offset": 1, "tail": 1}):
        with pytest.raises(InvalidSetting):
            handle.log(**bad)


@pytest.mark.req("SC-21")
def test_log_lines_of_threads_are_visible_while_the_attempt_runs(app: App) -> None:
    release = threading.Event()

    @app.job()
    def work(ctx: holdfast.SyncContext) -> None:
        threads = [threading.Thread(target=ctx.log.info, args=("from thread %s", n)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        release.wait(30)
        ctx.log.info("done")

    handle = work.enqueue()
    assert (handle.log().attempt, handle.log().text, handle.log().ended) == (0, "", False)
    with working(app):
        until(lambda: handle.log().text.count("from thread") == 8, "the lines are there before the end")
        seen = handle.log()
        assert not seen.ended
        release.set()
        until(lambda: handle.state() is State.SUCCEEDED, "the job succeeds")
    more = handle.log(offset=seen.next)
    assert (more.text.endswith("done\n"), more.text.count("\n"), more.ended) == (True, 1, True)


@pytest.mark.req("SC-21", "SC-5")
def test_log_is_truncated_at_its_limit_with_a_notice(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_JOB_LOG_LIMIT", "100KB")

    @app.job()
    async def chatty(ctx: holdfast.Context) -> None:
        for n in range(2_000):
            ctx.log.info("%04d %s", n, "ä" * 50)

    handle = chatty.enqueue()
    work_off(app)
    log = handle.log()
    lines = log.text.splitlines()
    assert lines[-1].startswith("[holdfast: the log was cut here, after 10")
    assert log.size < 102_400 + 100
    assert [line.split()[2] for line in lines[:-1]] == [f"{n:04d}" for n in range(len(lines) - 1)]
    pieces, offset = "", 0
    while (piece := handle.log(offset=offset)).text:
        pieces, offset = pieces + piece.text, piece.next
    assert pieces == log.text
    monkeypatch.setenv("HOLDFAST_JOB_LOG_LIMIT", "0")
    silent = chatty.enqueue()
    work_off(app)
    assert (silent.log().text, app.jobs.attempts(silent.id)[0].log) == ("", None)
    monkeypatch.setenv("HOLDFAST_JOB_LOG_LIMIT", "plenty")
    with pytest.raises(InvalidSetting):
        work_off(app)


@pytest.mark.req("SC-5", "SC-21")
def test_lines_before_a_handler_transaction_commit_with_it(app: App) -> None:
    @app.job(retry=ONCE)
    def ends(ctx: holdfast.SyncContext, fail: bool) -> None:
        ctx.log.info("before")
        with ctx.transaction():
            ctx.log.info("within")
            if fail:
                raise ValueError("rolled back")
        ctx.log.info("after: the record is closed")

    @app.job(retry=ONCE)
    async def aends(ctx: holdfast.Context) -> None:
        async with ctx.transaction():
            ctx.log.info("within")

    done, broken, other = ends.enqueue(False), ends.enqueue(True), aends.enqueue()
    work_off(app)
    assert (done.state(), broken.get().error_code, other.state()) == (State.SUCCEEDED, "ValueError", State.SUCCEEDED)
    assert [line.split()[-1] for line in done.log().text.splitlines()] == ["before", "within"]
    assert [line.split()[-1] for line in broken.log().text.splitlines()] == ["before", "within"]
    assert other.log().text.endswith("within\n")


@pytest.mark.req("SC-21")
def test_handler_without_log_lines_writes_no_log(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker import log_writer

    def unexpected(*_: object) -> None:
        raise AssertionError("a log was opened")

    monkeypatch.setattr(log_writer.LogWriter, "open", unexpected)

    @app.job()
    async def quiet(ctx: holdfast.Context) -> int:
        ctx.log.debug("below the level")
        return ctx.attempt

    handle = quiet.enqueue()
    work_off(app)
    assert (handle.result(), stored_lines(app)) == (1, [])


@pytest.mark.req("SC-21")
def test_log_write_failure_does_not_fail_the_handler(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Any:
        raise RuntimeError("no")

    @app.job()
    async def talks(ctx: holdfast.Context) -> str:
        ctx.log.info("into the void")
        return "fine"

    session_of(app).make_ready()
    monkeypatch.setattr(session_of(app).store.attempts, "append_log", refuse)
    handle = talks.enqueue()
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        work_off(app)
    assert handle.result() == "fine"
    assert "could not be written" in caplog.text


@pytest.mark.req("DP-4", "DP-21", "SC-21")
def test_log_lines_are_encrypted_and_reencrypted_on_key_rotation(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = f"old:{new_key()}", f"new:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app()

    @app.job()
    def heal(ctx: holdfast.SyncContext) -> None:
        ctx.log.info("found %s", CANARY)

    handle = heal.enqueue()
    work_off(app)
    assert CANARY not in json.dumps(stored_lines(app), default=str)
    assert CANARY in handle.log().text
    monkeypatch.setenv("HOLDFAST_KEYS", f"{new},{old}")
    both = new_app()
    done = rotate(session_of(both), session_of(both).vault)
    assert (done.unread, done.passed) == (0, 0)
    assert all('"key":"new"' in row[3] for row in stored_lines(app))
    monkeypatch.setenv("HOLDFAST_KEYS", new)
    assert CANARY in new_app().jobs.log(handle.id).text
    with pytest.raises(Refused) as refused:
        handle.log()
    assert refused.value.code == "key_unknown"


@pytest.mark.req("DP-21", "SC-21")
def test_restricted_kind_stores_and_shows_no_log(new_app: NewApp, tmp_path: Path) -> None:
    app = new_app(artifacts=tmp_path / "store")

    @app.job(payload_rules=PayloadPolicy(restricted=True))
    def secret(ctx: holdfast.SyncContext, number: str) -> None:
        ctx.log.info("the number is %s", number)

    @app.job()
    def later(ctx: holdfast.SyncContext) -> None:
        ctx.log.info(CANARY)
        ctx.artifact("a", data=b"a")

    handle, open_ = secret.enqueue(CANARY), later.enqueue()
    work_off(app)
    assert [str(row[0]) for row in stored_lines(app)] == [open_.id]
    app.payload_rules.set("later", restricted=True)
    for each in (handle, open_):
        with pytest.raises(Refused, match="restricted"):
            each.log()
    with pytest.raises(Refused, match="restricted"):
        open_.artifact("a")
    assert app.jobs.attempts(open_.id)[0].log == "[restricted]"


PRINT = [
    sys.executable,
    "-c",
    "import os; print('x' * 200); open(os.environ['HOLDFAST_ARTIFACTS'] + '/a', 'w').write('a')",
]


@pytest.mark.req("SC-21", "DP-16", "SC-14")
@pytest.mark.parametrize("stored", [True, False])
def test_program_output_moves_to_the_artifact_store_and_is_deleted_with_the_job(
    new_app: NewApp, tmp_path: Path, stored: bool
) -> None:
    logs, store = tmp_path / "logs", tmp_path / "store"
    logs.mkdir()
    app = new_app(artifacts=store) if stored else new_app()
    if not stored:
        object.__setattr__(session_of(app), "vault", type(session_of(app).vault)())
    kind = app.command("prints", PRINT, log_dir=logs, retry=ONCE)
    handle = kind.enqueue()
    work_off(app)
    assert (handle.log().text, handle.log(tail=5).text, handle.artifact("a")) == ("x" * 200 + "\n", "xxxx\n", b"a")
    (ended,) = handle.attempts()
    assert (ended.log or "").startswith("artifact://" if stored else f"file://{host_files.host_name()}{logs}")
    assert [folder for folder in (logs, store) if any(folder.rglob("*"))] == [store if stored else logs]
    app.retention.set(clean_after="1h")
    forward(session_of(app).store, 4_000)
    assert app.retention.sweep()["clean"] == 1
    assert not [each for each in (*logs.rglob("*"), *store.rglob("*")) if each.is_file()], "log and artifact are gone"
    assert handle.log().text == ""
    assert not [each for each in app.retention.preview() if each.action == "delete"]


@pytest.mark.req("SC-21", "SC-14")
@pytest.mark.parametrize("stored", [True, False])
def test_files_of_a_timed_out_program_are_kept(new_app: NewApp, tmp_path: Path, stored: bool) -> None:
    (tmp_path / "logs").mkdir()
    app = new_app(artifacts=tmp_path / "store") if stored else new_app()
    write_and_hang = [*PRINT[:-1], f"{PRINT[-1]}; import time; time.sleep(600)"]
    kind = app.command("hangs", write_and_hang, log_dir=tmp_path / "logs", retry=ONCE, timeout=2.0, kill_after=0.2)
    handle = kind.enqueue()
    work_off(app)
    assert handle.get().error_code == "timeout"
    assert handle.artifact("a") == b"a"


@pytest.mark.req("SC-21", "SC-14")
def test_log_on_another_host_is_refused_with_its_location(app: App, tmp_path: Path) -> None:
    @app.job()
    def work(ctx: holdfast.SyncContext) -> None:
        claim, session = ctx._run.claim, ctx._run.session
        places = {
            1: f"file://box/logs/{ctx.job_id[:8]}/{ctx.job_id}/1/output.log",
            2: "file://box/etc/passwd",
            3: f"file://box/x/{ctx.job_id[:8]}/{ctx.job_id}/../../../etc/passwd",
        }
        part = LogPart(claim.id, claim.attempt, 1, None, places[int(ctx.tags[0])])
        session.run(session.store.attempts.append_log(claim.lease, [part], session.scope))
        ctx.artifact("mine", "file:///etc/passwd")
        ctx.artifact("far", "s3://bucket/x")

    far, forged, climbing = (work.using(tags=(str(n),)).enqueue() for n in (1, 2, 3))
    work_off(app)
    with pytest.raises(Refused) as refused:
        far.log()
    assert refused.value.code == "log_elsewhere"
    assert "on host box" in str(refused.value)
    assert f"/logs/{far.id[:8]}" in str(refused.value.fix)
    for each in (forged, climbing):
        with pytest.raises(Refused, match="not in the directory of this job"):
            each.log()
    for name in ("mine", "far"):
        with pytest.raises(Refused) as refused:
            far.artifact(name)
        assert refused.value.code == "artifact_elsewhere"
    with pytest.raises(NotFound, match="no artifact 'none'"):
        far.artifact("none")


@pytest.mark.req("SC-21")
def test_symlinks_are_neither_read_nor_followed_on_delete(tmp_path: Path) -> None:
    job_id = "01a1e98c-d0a6-7197-a6d8-a7b247969602"
    own = tmp_path / job_id[:8] / job_id / "1"
    own.mkdir(parents=True)
    (own / "output.log").write_text("fine")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    (own / "link").symlink_to(outside / "precious")
    (own / "folder").symlink_to(outside)
    os.mkfifo(own / "pipe")

    def read(name: str) -> tuple[int, int, bytes] | None:
        return host_files.read_file(host_files.reference_to(own / name), job_id, 0, 100)

    assert read("output.log") == (0, 4, b"fine")
    assert [read(name) for name in ("link", "folder/precious", "pipe", "none", "folder")] == [None] * 5
    aside = tmp_path / "aside" / job_id[:8]
    aside.mkdir(parents=True)
    (aside / job_id).symlink_to(outside)
    assert not host_files.remove_directory(host_files.reference_to(aside / job_id), job_id)
    with pytest.raises(Refused):
        host_files.remove_directory(host_files.reference_to(outside), job_id)
    assert host_files.remove_directory(host_files.reference_to(own.parent), job_id)
    assert (outside / "precious").read_text() == "keep"
    assert not (tmp_path / job_id[:8]).exists()


@pytest.mark.req("SC-21")
def test_log_pages_never_split_a_character() -> None:
    data = "aä€𝄞\n".encode() * 3
    for cut in range(len(data) + 1):
        after, text = decode_log(data[:cut], 0, at_end=False)
        rest, more = decode_log(data[after:], after, at_end=True)
        assert ((text + more).encode(), rest, "�" in text) == (data, len(data), False)
    assert decode_log(b"\xff\xfe\x80", 5, at_end=True) == (8, "���")
