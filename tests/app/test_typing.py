"""A wrong argument is a type error before it is a runtime error (HF-5): mypy checks small programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

pytestmark = [pytest.mark.req("HF-5"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]

HEAD = """\
import asyncio
from datetime import datetime
import holdfast
from holdfast import Context, Handle, SyncContext
from holdfast.testing import Kit
from holdfast.features.workflows.parts import Planned

app = holdfast.App("sqlite:///:memory:")

@app.job(queue="mail", retry=holdfast.Retry(max_attempts=3), timeout="30s")
def send(to: str, copies: int = 1) -> str:
    return to * copies

@app.job()
async def count(ctx: Context, words: list[str], *, at: datetime | None = None) -> int:
    return len(words)

@app.job()
def remember(ctx: SyncContext, what: str) -> None: ...

@app.job
def bare(ctx: SyncContext, what: str) -> bytes:
    return what.encode()

@app.job
async def abare(n: int) -> bytes:
    return bytes(n)

@app.job(process=holdfast.Process(memory="512MB"), payload_rules=holdfast.PayloadPolicy(signal_only=True))
def grouped(n: int) -> None: ...

kit = Kit(app)
ctx: Context
sync_ctx: SyncContext

"""

CORRECT = [
    'send.enqueue("a")',
    'send.enqueue("a", 2)',
    'send.enqueue(to="a", copies=2)',
    'send.using(delay=5, key="k", tenant="acme").enqueue("a")',
    'await send.aenqueue("a", copies=2)',
    'count.enqueue(["a"])',
    'await count.aenqueue(["a"], at=datetime.now())',
    'remember.enqueue("x")',
    'app.enqueue_many([send.prepare("a"), send.prepare("b")])',
    'app.enqueue_many(count.prepare(["a"]) for _ in range(3))',
    'text: str = send.enqueue("a").result()',
    'number: int = await count.enqueue(["a"])',
    'later: int = await (await count.aenqueue(["a"])).aresult(timeout="5s")',
    'handle: Handle[str] = send.enqueue("a")',
    'texts: list[Handle[str]] = app.enqueue_many([send.prepare("a")])',
    'with_timeout: str = send.enqueue("a").result(timeout=5)',
    'ran: str = kit.run(send, "a", copies=2)',
    'ran_async: int = await kit.arun(count, ["a"])',
    'ran_handle: str = kit.run(send.enqueue("a"))',
    'ran_prepared: int = await kit.arun(count.prepare(["a"]))',
    'planned: Planned[str] = app.workflow("w").add(send, "a", after=None)',
    'in_flow: str = app.workflow("w").start()[app.workflow("w").add(send.prepare("a"))].result()',
    "given: list[int] = (await ctx.results()).of(count)",
    "given_sync: list[int] = sync_ctx.results().of(count)",
    "await ctx.progress(0.5)",
    'of_bare: bytes = bare.enqueue("x").result()',
    "of_abare: bytes = await abare.enqueue(7)",
    "grouped.enqueue(7)",
    "job: holdfast.Job = await abare.enqueue(7).aget()",
    "attempts: list[holdfast.Attempt] = abare.enqueue(7).attempts()",
    "app.approval_notifier(timeout=30)",
    "sync_ctx.progress(0.5)",
    'ran_with_options: str = kit.run(send.using(key="k"), "a")',
    'limit: holdfast.Limit = app.limits.get(queue="mail")',
    "jobs: list[holdfast.Job] = await app.jobs.alist(limit=20)",
    'seqs: list[int] = [event.seq async for event in app.events.aread("billing")]',
    'app.run_worker(queues=("mail",), concurrency=4)',
]

WRONG = {
    "send.enqueue()": "call-arg",
    "send.enqueue(7)": "arg-type",
    'send.enqueue("a", "b")': "arg-type",
    'send.enqueue("a", copy=2)': "call-arg",
    'send.enqueue("a", 2, 3)': "call-arg",
    "await send.aenqueue(7)": "arg-type",
    "await send.aenqueue()": "call-arg",
    "send.prepare(7)": "arg-type",
    'send.using(key="k").enqueue(7)': "arg-type",
    "send.using(priority='high')": "arg-type",
    "send.using(colour='red')": "call-arg",
    'count.enqueue("a")': "arg-type",
    'count.enqueue(["a"], at="now")': "arg-type",
    "count.enqueue(holdfast.Context, ['a'])": "",
    "remember.enqueue()": "call-arg",
    'number: int = send.enqueue("a").result()': "assignment",
    'text: str = await count.enqueue(["a"])': "assignment",
    'text: str = await (await count.aenqueue(["a"])).aresult()': "assignment",
    "wrong: list[Handle[int]] = app.enqueue_many([send.prepare('a')])": "",
    "app.job(retry=3)": "call-overload",
    "kit.run(send, 7)": "call-overload",
    'await kit.arun(count, "a")': "call-overload",
    'kit.run(send.enqueue("a"), "b")': "call-overload",
    'ran: int = kit.run(send, "a")': "assignment",
    'planned: Planned[int] = app.workflow("w").add(send, "a")': "",
    'app.workflow("w").add(send.prepare(7))': "arg-type",
    "given: list[str] = (await ctx.results()).of(count)": "",
    'app.workflow("w", on_failure="explode")': "call-overload",
    "ctx.progress(0.5)": "unused-coroutine",
    "bare.enqueue(7)": "arg-type",
    'abare.enqueue("x")': "arg-type",
    'of_bare: str = bare.enqueue("x").result()': "assignment",
    "of_abare: str = await abare.enqueue(7)": "assignment",
    "app.job(memory='1GB')": "call-overload",
    "app.approval_notifier(colour='red')": "call-arg",
    "raise holdfast.Retry(3)": "misc",
    "abare.enqueue(7).redrive(from_step=0.5)": "arg-type",
    "given: list[int] = ctx.results().of(count)": "attr-defined",
    "await sync_ctx.progress(0.5)": "",
    "ctx.transaction().__enter__()": "attr-defined",
    'app.limits.set(quue="mail")': "call-arg",
    'await app.limits.aset(queue="mail", concurrency="5")': "arg-type",
    "jobs: list[holdfast.Job] = app.jobs.alist()": "assignment",
    "app.run_worker(concurrency='4')": "arg-type",
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The findings of mypy by line, in one program for all: starting mypy takes seconds."""
    program = tmp_path_factory.mktemp("typing") / "program.py"
    program.write_text(
        HEAD + "".join(f"async def f{n}() -> None:\n    {line}\n" for n, line in enumerate((*CORRECT, *WRONG))),
        encoding="utf-8",
    )
    arguments = [
        *("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(program.parent / "cache")),
        *("--no-error-summary", "--hide-error-context", "--show-error-codes", str(program)),
    ]
    output, errors, _ = api.run(arguments)
    assert not errors
    findings: dict[int, str] = {}
    for line in output.splitlines():
        name, number, rest = line.split(":", 2)
        assert Path(name).name == program.name, line
        if "error:" in rest:
            findings[int(number)] = findings.get(int(number), "") + rest
    return findings


def _number(line: str) -> int:
    return len(HEAD.splitlines()) + 2 + 2 * [*CORRECT, *WRONG].index(line)


@pytest.mark.parametrize("line", CORRECT)
def test_correct_call_type_checks(findings: dict[int, str], line: str) -> None:
    assert _number(line) not in findings


@pytest.mark.parametrize("line", WRONG)
def test_wrong_call_is_a_type_error(findings: dict[int, str], line: str) -> None:
    finding = findings.get(_number(line))
    assert finding is not None, "mypy accepts it"
    assert WRONG[line] in finding


def test_declarations_type_check(findings: dict[int, str]) -> None:
    assert [number for number in findings if number <= len(HEAD.splitlines())] == []
