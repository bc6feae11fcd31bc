"""Connections cut at any byte of a stream or a response."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import App, Retry, errors
from holdfast.app.internals import session_of
from holdfast.engine.operation import Emit
from holdfast.features.events import routes as route
from holdfast.remote import Retrying
from holdfast.remote import events as following
from holdfast.remote.http_requests import Open, Pause, Read, Reply, Unreachable
from holdfast.remote.runners import Base, Link, Runner
from tests.http.conftest import SOON, Driver
from tests.http.cutting_proxy import Cutting
from tests.http.scripted_server import Hostile, answers, event

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

both_forms = pytest.mark.parametrize(
    ("url", "form"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"]
)
STREAM = {"content-type": "text/event-stream"}
OFTEN = dataclasses.replace(SOON, tries=1_000)


def follow(retrying: Retrying, after: str | None = None) -> Any:
    """The program of `follow`, to be driven by a test."""
    events = following.Events(Runner(Link(Base.of("http://127.0.0.1:1"), retrying=retrying)))
    return vars(following.Events)["follow"].program(events, after=after)


class Ledger:
    """The bytes of a service that has one more event at each connection."""

    def __init__(self, end: str) -> None:
        self.last, self._end = 3, end

    def stream(self, cursor: str | None) -> tuple[Reply, bytes]:
        start = self.last if cursor is None else int(cursor)
        self.last += 1
        events = "".join(event(seq, self._end) for seq in range(start + 1, self.last + 1))
        greeting = self._end.join((": following", f"id: {start}", "retry: 2000", "", ""))
        # The comment at the end completes the last event: after a CR the parser waits for the next byte.
        return Reply(200, STREAM | {"holdfast-cursor": str(start)}), f"{greeting}{events}: ping".encode()


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    yield from (body[n : n + size] for n in range(0, len(body), size))


@given(
    st.lists(st.integers(0, 900), min_size=1, max_size=6),
    st.integers(1, 300),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([None, "1"]),
)
@example([0, 0, 0], 1, "\n", None)
@example([6], 1, "\n", "1")
def test_stream_cut_anywhere_yields_each_event_once(cuts: list[int], size: int, end: str, after: str | None) -> None:
    ledger, left = Ledger(end), iter(cuts)
    flow, seen = follow(OFTEN, after), list[int]()
    read, whole = iter(list[bytes]()), False
    step = next(flow)
    while True:
        got: Any = None
        if isinstance(step, Open):
            got, body = ledger.stream(step.request.headers.get("Last-Event-ID"))
            cut = next(left, None)
            whole = cut is None
            read = pieces(body[:cut], size)
        elif isinstance(step, Read):
            got = next(read, None)
            if got is None and whole:
                break
            got = got or (b"" if size % 2 else Unreachable("lost"))
        elif isinstance(step, Emit):
            seen.append(step.item.seq)
        step = flow.send(got)
    flow.close()
    begin = 4 if after is None else 2
    assert seen == list(range(begin, ledger.last + 1))


@pytest.mark.parametrize("retry_line", ["", "retry: 0\n", "retry: 1\n", "retry: 999999999\n"])
def test_service_that_ends_every_stream_is_polled_with_pauses(retry_line: str) -> None:
    def paused(body: bytes, most: int) -> list[float]:
        """The pauses between `most` streams of this body, or until the client gives up."""
        flow, parts = follow(Retrying(tries=4, first=0.25, longest=8.0)), iter(list[bytes]())
        pauses: list[float] = []
        with contextlib.suppress(errors.StoreUnavailable):
            step = next(flow)
            while len(pauses) < most:
                got: Any = None
                if isinstance(step, Pause):
                    pauses.append(step.seconds)
                elif isinstance(step, Open):
                    parts, got = iter([body]), Reply(200, STREAM)
                else:
                    got = next(parts, b"")
                step = flow.send(got)
        flow.close()
        return pauses

    silent = paused(retry_line.encode(), 100)
    assert len(silent) == 3  # then the client gave up
    assert all(0.1 <= pause <= 8.0 for pause in silent)
    assert silent[2] > silent[0]
    spoken = paused(
        f": following\nid: 7\n{retry_line}\n".encode(), 50
    )  # streams with a position may repeat without limit
    assert len(spoken) == 50
    assert all(0.25 <= pause <= 8.0 for pause in spoken)


def test_error_after_reconnect_is_raised(drive: Drive) -> None:
    stream = answers(200, "retry: 1\n\n" + event(4), "text/event-stream")
    for script, kind, code in (
        (answers(401, '{"code": "unauthenticated"}'), errors.Refused, "unauthenticated"),
        (answers(404, '{"code": "no_such_route"}'), errors.StoreError, "no_such_route"),
        (answers(500, "<p>", "text/html"), errors.StoreError, "unexpected_answer"),
        (answers(503, "<p>", "text/html"), errors.StoreUnavailable, "store_unavailable"),
        (answers(200, "<p>", "text/html"), errors.StoreError, "unexpected_answer"),
        (answers(204, ""), errors.StoreError, "unexpected_answer"),
        (answers(302, "", Location="http://127.0.0.2/"), errors.StoreError, "redirected"),
        (answers(200, "id: ä\n\n", "text/event-stream"), errors.InvalidInput, "invalid_cursor"),
        (answers(200, "", "text/event-stream"), errors.StoreUnavailable, "store_unavailable"),
    ):
        with Hostile(stream, script) as server:
            driver = drive(server.url)
            with pytest.raises(errors.HoldfastError) as raised:
                driver.take(lambda client: client.events.follow())
            assert (type(raised.value), raised.value.code) == (kind, code)


def cut_at(offsets: Iterator[int]) -> Callable[[bytes, bytes], bool]:
    """Cut each connection at the next of these offsets, and none after the last."""
    offset: int | None = None

    def fate(_: bytes, answered: bytes) -> bool:
        nonlocal offset
        if len(answered) == 1:
            offset = next(offsets, None)
        return offset is not None and len(answered) > offset

    return fate


@both_forms
def test_real_stream_cut_after_its_head_misses_no_event(base: str, drive: Drive, app: App) -> None:
    app.enqueue("mail", {"n": -1})
    made: list[str] = []

    def fate(_: bytes, answered: bytes) -> bool:
        cut = len(made) < 3 and b"\r\n\r\n" in answered[:-1]  # only the complete head has arrived
        if cut:  # an event happens while disconnected
            made.append(app.enqueue("mail", {"n": len(made)}).id)
        return cut

    with Cutting(base, fate, part=1) as proxy:
        result = drive(proxy.url, retrying=OFTEN).take(lambda c: c.events.follow(), most=3)
        assert proxy.cuts >= 3
    assert [each.job_id for each in result] == made


@pytest.mark.slow
@both_forms
def test_real_stream_cut_at_many_offsets_misses_no_event(base: str, drive: Drive, app: App) -> None:
    handles = [app.enqueue("mail", {"n": n}) for n in range(30)]
    start = session_of(app).store.run(session_of(app).store.ledger.read(None, 1, "default"))[0].cursor
    with Cutting(base, cut_at(iter(range(0, 1_400, 37))), part=1) as proxy:
        result = drive(proxy.url, retrying=OFTEN).take(lambda c: c.events.follow(after=start), most=29)
        assert proxy.cuts > 20
    assert [each.job_id for each in result] == [handle.id for handle in handles[1:]]


@both_forms
def test_filtered_list_continues_after_empty_pages(
    base: str, drive: Drive, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE", 3)
    monkeypatch.setattr(route, "MAX_PAGES", 2)
    first = app.enqueue("rare")
    for _ in range(20):
        app.enqueue("mail")
    last = app.enqueue("rare")
    events = drive(base).take(lambda c: c.events.list(kind="rare"))
    assert [each.job_id for each in events] == [first.id, last.id]
    assert drive(base).take(lambda c: c.events.list(kind="none")) == []


@pytest.mark.slow
@both_forms
def test_idempotent_request_takes_effect_once_wherever_its_response_is_cut(base: str, drive: Drive, app: App) -> None:
    def length(act: Callable[[Any], Any]) -> int:
        seen = [0]

        def fate(_: bytes, answered: bytes) -> bool:
            seen[0] = len(answered)
            return False

        with Cutting(base, fate, part=1) as proxy:
            drive(proxy.url).do(act)
        return seen[0]

    straight = drive(base)
    lease = straight.do(lambda c: c.leases.open()).lease

    def worked() -> Any:
        app.enqueue("work", queue="work")
        (job,) = straight.do(lambda c: c.leases.claim(lease, queues=["work"]))
        return job

    acts: dict[str, Callable[..., Any]] = {
        "enqueue": lambda c, job: c.enqueue("mail"),
        "enqueue_many": lambda c, job: c.enqueue_many([c.prepare("mail"), c.prepare("mail")]),
        "checkpoint": lambda c, job: c.leases.checkpoint(lease, job, "rows", 7),
        "renew": lambda c, job: c.leases.renew(lease),
        "settle": lambda c, job: c.leases.settle(lease, job, result={"done": True}),
        "fail": lambda c, job: c.leases.settle(lease, job, "retry", after=3_600),
        "release": lambda c, job: c.leases.release(lease, job),
        "jobs": lambda c, job: c.jobs.list(limit=3),
    }
    for name, act in acts.items():
        needs = name in ("checkpoint", "settle", "fail", "release")
        whole = length(partial(_acted, act, worked if needs else None))
        last = whole - (20 if name == "jobs" else 1)  # timestamps vary in length
        for offset in (0, 1, 20, whole // 2, whole - 40, last):
            before = len(app.jobs.list(limit=1_000))
            job: Any = worked() if needs else None
            with Cutting(base, cut_at(iter([offset])), part=1) as proxy:
                answer = drive(proxy.url).do(partial(act, job=job))
                assert proxy.cuts == 1, (name, offset)
            made = len(app.jobs.list(limit=1_000)) - before - needs
            if name.startswith("enqueue"):
                handles = [answer] if name == "enqueue" else answer
                assert (made, [each.created for each in handles]) == (len(handles), [True] * len(handles)), offset
            elif name in ("settle", "fail"):
                event_types = [each.type for each in app.jobs.handle(job.id).history() if each.attempt == job.attempt]
                assert (answer.settled, event_types.count("succeed") + event_types.count("fail")) == (True, 1), offset
                assert answer.ending == {"settle": "succeeded", "fail": "retry"}[name]
            elif name == "release":
                assert [each.settled for each in answer] == [True], offset
                straight.do(lambda c: c.leases.claim(lease, queues=["work"]))


@pytest.mark.slow
@both_forms
def test_repeated_settlement_gets_the_same_result(base: str, drive: Drive, app: App) -> None:
    driver = drive(base)
    lease = driver.do(lambda c: c.leases.open()).lease
    handle = app.enqueue("work", retry=Retry(max_attempts=2))
    for ending in ("retry", "dead_letter"):
        (job,) = driver.do(lambda c: c.leases.claim(lease, wait=10))
        again = partial(_put_off, lease=lease, job=job)
        results = [driver.do(again) for _ in range(3)]
        assert [each.ending for each in results] == [ending] * 3
    assert handle.state() == "dead_letter"


def _acted(act: Callable[..., Any], make: Callable[[], Any] | None, client: Any) -> Any:
    return act(client, None if make is None else make())


def _put_off(client: Any, lease: str, job: Any) -> Any:
    return client.leases.settle(lease, job, "retry", after=0)
