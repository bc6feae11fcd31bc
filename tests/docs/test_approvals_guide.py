"""Each block of the approvals guide runs on both stores, and its tutorial works as printed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, Approval, Context, State
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from holdfast.features.approvals.operations import REASONS
from tests.docs.console import Console
from tests.docs.guide_blocks import blocks, finish, later, run, text
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("CX-5", "CX-6", "CX-7"), pytest.mark.slow]

FILES = re.compile(r"`(\w+\.py)`:\n\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TUTORIAL = text("approvals").partition("## Asking")[0]


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="guide", enqueued_by="tester")) as app:
        yield app


@pytest.mark.slow
def test_tutorial_works_as_printed(url: str, tmp_path: Path) -> None:
    files = FILES.findall(TUTORIAL)
    assert [name for name, _ in files] == ["refunds.py", "decide.py"]
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    console = Console(tmp_path, url, user="dora")
    try:
        console.follow(TUTORIAL)
        console.close()
    finally:
        console.kill()


def approval_of(app: App) -> Approval:
    (approval,) = app.approvals.list()
    return approval


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()
    return caught.value.code


def first_handler(app: App, block: str) -> None:
    """The tutorial's program, approved from Python instead of the command line."""
    names = run(block.replace("holdfast.App()", "app"), app)
    handle = names["refund"].enqueue(7, 900)
    work_off(app)
    assert handle.state() is State.WAITING_FOR_APPROVAL
    app.approvals.approve(approval_of(app).id, by="ada", comment="a good customer")
    assert finish(app, handle) == "900 paid for order 7; approved by ada: a good customer"


def decision_from_python(app: App, block: str) -> None:
    """Runs as a file in the tutorial."""
    assert "app.approvals.deny(" in block


def two_of_three(app: App, block: str) -> None:
    wire = run(block, app)["wire"]
    handle = wire.using(enqueued_by="bob").enqueue(5_000)
    work_off(app)
    approval = approval_of(app)
    assert app.approvals.approve(approval.id, by="ada") == "open"
    assert refused(lambda: app.approvals.approve(approval.id, by="ada")) == "already_voted"
    assert refused(lambda: app.approvals.approve(approval.id, by="bob")) == "requester_may_not_decide"
    assert app.approvals.approve(approval.id, by="eve") == "approved"
    assert finish(app, handle) == "ada and eve"


def form(app: App, block: str) -> None:
    handle = run(block, app)["campaign"].enqueue("spring")
    work_off(app)
    assert refused(lambda: app.approvals.approve(approval_of(app).id, by="ada")) == "form_invalid"
    assert refused(lambda: app.approvals.approve(approval_of(app).id, by="ada", data={"limit": 0})) == "form_invalid"
    run(blocks("approvals")[4], app)
    assert finish(app, handle) == 500


def filled_form(app: App, block: str) -> None:
    """Runs with the form above."""
    assert 'app.approvals.approve(approval.id, by="ada", data=' in block


def denied_approval(app: App, block: str) -> None:
    released: list[str] = []
    names = {
        "reserve": lambda number: f"seat {number}",
        "release": released.append,
        "buy": lambda seat: f"{seat} bought",
    }
    trip = run(block, app, **names)["trip"]
    denied, expired, bought = trip.enqueue(1), trip.enqueue(2), trip.enqueue(3)
    work_off(app)
    approvals = {approval.job_id: approval.id for approval in app.approvals.list()}
    app.approvals.deny(approvals[denied.id], by="ada", comment="take the bus")
    app.approvals.approve(approvals[bought.id], by="ada")
    later(app, timedelta(days=2))
    session_of(app).run(session_of(app).store.approvals.attend())
    assert finish(app, denied) == "denied: take the bus"
    assert finish(app, expired) == "expired: None"
    assert finish(app, bought) == "seat 3 bought"
    assert sorted(released) == ["seat 1", "seat 2"]


Mails = list[tuple[str, str, str]]


def notified(app: App, block: str, **options: Any) -> Mails:
    """Run the notifier of the guide and a job that requests an approval with these options."""
    mails: Mails = []
    run(block, app, send_mail=lambda *mail: mails.append(mail))

    @app.job("asks")
    async def asks(ctx: Context) -> str:
        decision = await ctx.approval("pay", summary="Pay <7>?", approvers=["ada", "bob"], **options)
        return f"{decision.by}: {decision.comment}"

    asks.enqueue()
    work_off(app)
    return mails


def notified_approvers(app: App, block: str) -> None:
    again = {"remind_every": "1d", "escalate_after": "3d", "escalate_to": ["boss"]}
    mails = notified(app, block, **again)
    assert [(to, words) for to, words, _ in mails] == [("ada", "Pay <7>? (asked)"), ("bob", "Pay <7>? (asked)")]
    for days in (1, 2, 3):
        later(app, timedelta(days=days, minutes=1))
        session_of(app).run(session_of(app).store.approvals.attend())
        work_off(app)
    assert [to for to, words, _ in mails if "(escalated)" in words] == ["ada", "bob", "boss"]
    assert [to for to, words, _ in mails if "(reminder)" in words][:4] == ["ada", "bob"] * 2
    first, *_, token = (link.partition("/decide/")[2] for _, _, link in mails)
    assert refused(lambda: app.approvals.approve(first)) == "token_expired"
    assert app.approvals.approve(token) == "approved"
    assert refused(lambda: app.approvals.approve(token)) == "already_decided"


def decision_by_link(app: App, block: str) -> None:
    mails = notified(app, blocks("approvals")[6])
    page = run(block, app)["approvals_page"]
    query = f"token={mails[0][2].partition('/decide/')[2]}"

    def request(method: str, body: bytes = b"") -> str:
        started: list[str] = []
        environ = {
            "REQUEST_METHOD": method,
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        shown: list[bytes] = page(environ, lambda status, headers: started.append(status))
        assert started == ["200 OK"]
        return b"".join(shown).decode()

    for _ in range(3):  # a mail scanner
        assert "Pay &lt;7&gt;?" in request("GET")
    assert approval_of(app).state == "open"
    assert request("POST", b"verdict=approve&comment=fine") == "It is approved."
    assert request("POST", b"verdict=deny") == "the decision does not count: it has been decided already"
    (handle,) = app.jobs.list(kind="asks")
    work_off(app)
    job = app.jobs.get(handle.id)
    assert job.state is State.SUCCEEDED


def approval_before_the_job(app: App, block: str) -> None:
    handle = run(block, app)["wipe"].enqueue("customers")
    work_off(app)
    approval = approval_of(app)
    assert (approval.name, approval.summary) == ("run", f"Run wipe ({handle.id})")
    app.approvals.approve(approval.id, by="ada")
    assert finish(app, handle) == "customers is empty"


CHECKS: list[Callable[[App, str], None]] = [
    first_handler,
    decision_from_python,
    two_of_three,
    form,
    filled_form,
    denied_approval,
    notified_approvers,
    decision_by_link,
    approval_before_the_job,
]


@pytest.mark.parametrize("number", range(len(CHECKS)), ids=[check.__name__ for check in CHECKS])
def test_block_does_what_the_guide_says(app: App, number: int) -> None:
    CHECKS[number](app, blocks("approvals")[number])


def test_every_block_is_tested() -> None:
    assert len(blocks("approvals")) == len(CHECKS)


def test_sql_of_the_guide_decides(postgres_url: str) -> None:
    (block,) = blocks("approvals", "sql")
    with closing(App(postgres_url, name="guide", enqueued_by="tester")) as app:
        handle = run(blocks("approvals")[3], app)["campaign"].enqueue("spring")
        work_off(app)
        approval = approval_of(app)
        approve, deny, _ = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", approval.id, block).split(";")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            (approved,) = connection.execute(approve.encode()).fetchall()
            (denied,) = connection.execute(deny.encode()).fetchall()
        assert [str(value) for value in approved] == [approval.id, "approved", "False", "None"]
        assert [str(value) for value in denied] == [approval.id, "approved", "True", "already_decided"]
        assert finish(app, handle) == 500


def test_guide_lists_every_refusal() -> None:
    table = text("approvals").partition("## Refusals")[2].partition("\n\nIn Python")[0]
    codes = {code for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    assert codes == set(REASONS)
