"""Connections that end anywhere: at every byte of a stream and of an answer (JF-14)."""

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
from holdfast.engine.operation import Emit
from holdfast.features.events import routes as route
from holdfast.remote import Retrying
from holdfast.remote import events as following
from holdfast.remote.http_requests import Open, Pause, Read, Reply, Unreachable
from holdfast.remote.link import Base, Link
from holdfast.remote.runners import Runner
from tests.http.conftest import SOON, Driver
from tests.http.cutting import Cutting
from tests.http.hostile import answers, event, hostile

pytestmark = pytest.mark.req("JF-14")

Drive = Callable[..., Driver]

there = pytest.mark.parametrize(("url", "colour"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"])
STREAM = {"content-type": "text/event-stream"}
OFTEN = dataclasses.replace(SOON, tries=1_000)


def follow(retrying: Retrying, after: str | None = None) -> Any:
    """The steps of following, for whoever carries them out."""
    events = following.Events(Runner(Link(Base.of("http://127.0.0.1:1"), retrying=retrying)))
    return vars(following.Events)["follow"].program(events, after=after)


class Ledger:
    """A service as the wire shows it, with one event more each time that somebody connects."""

    def __init__(self, end: str) -> None:
        self.last, self._end = 3, end

    def stream(self, place: str | None) -> tuple[Reply, bytes]:
        start = self.last if place is None else int(place)
        self.last += 1
        told = "".join(event(seq, self._end) for seq in range(start + 1, self.last + 1))
        greeting = self._end.join((": following", f"id: {start}", "retry: 2000", "", ""))
        # The comment at the end is there for the CR of the last event, which waits for what comes behind it.
        return Reply(200, STREAM | {"holdfast-cursor": str(start)}), f"{greeting}{told}: ping".encode()


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
def test_a_stream_that_is_cut_anywhere_tells_each_event_once(
    cuts: list[int], size: int, end: str, after: str | None
) -> None:
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


@pytest.mark.parametrize("said", ["", "retry: 0\n", "retry: 1\n", "retry: 999999999\n"])
def test_a_service_that_ends_every_stream_is_not_asked_without_a_pause(said: str) -> None:
    def paused(body: bytes, most: int) -> list[float]:
        """Between so many streams of this body, or until it is given up."""
        flow, told = follow(Retrying(tries=4, first=0.25, longest=8.0)), iter(list[bytes]())
        pauses: list[float] = []
        with contextlib.suppress(errors.StoreUnavailable):
            step = next(flow)
            while len(pauses) < most:
                got: Any = None
                if isinstance(step, Pause):
                    pauses.append(step.seconds)
                elif isinstance(step, Open):
                    told, got = iter([body]), Reply(200, STREAM)
                else:
                    got = next(told, b"")
                step = flow.send(got)
        flow.close()
        return pauses

    silent = paused(said.encode(), 100)
    assert len(silent) == 3  # then it was given up
    assert all(0.1 <= each <= 8.0 for each in silent)
    assert silent[2] > silent[0]
    spoken = paused(f": following\nid: 7\n{said}\n".encode(), 50)  # it does tell where we are: as long as you like
    assert len(spoken) == 50
    assert all(0.25 <= each <= 8.0 for each in spoken)


def test_what_answers_when_one_comes_back_is_told(drive: Drive) -> None:
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
        with hostile(stream, script) as server:
            driver = drive(server.url)
            with pytest.raises(errors.HoldfastError) as raised:
                driver.take(lambda client: client.events.follow())
            assert (type(raised.value), raised.value.code) == (kind, code)


def cut_at(offsets: Iterator[int]) -> Callable[[bytes, bytes], bool]:
    """Each connection at the next of these offsets, and none after the last."""
    place: int | None = None

    def fate(_: bytes, answered: bytes) -> bool:
        nonlocal place
        if len(answered) == 1:
            place = next(offsets, None)
        return place is not None and len(answered) > place

    return fate


@there
def test_a_real_stream_that_is_cut_behind_its_head_misses_nothing(base: str, drive: Drive, app: App) -> None:
    app.enqueue("mail", {"n": -1})
    made: list[str] = []

    def fate(_: bytes, answered: bytes) -> bool:
        cut = len(made) < 3 and b"\r\n\r\n" in answered[:-1]  # the head has come whole, and nothing else
        if cut:  # somebody is busy while the connection is gone
            made.append(app.enqueue("mail", {"n": len(made)}).id)
        return cut

    with Cutting(base, fate, part=1) as proxy:
        told = drive(proxy.url, retrying=OFTEN).take(lambda c: c.events.follow(), most=3)
        assert proxy.cuts >= 3
    assert [each.job_id for each in told] == made


@pytest.mark.slow
@there
def test_a_real_stream_that_is_cut_at_many_places_misses_nothing(base: str, drive: Drive, app: App) -> None:
    handles = [app.enqueue("mail", {"n": n}) for n in range(30)]
    start = app._store.run(app._store.ledger.read(None, 1, "default"))[0].cursor
    with Cutting(base, cut_at(iter(range(0, 1_400, 37))), part=1) as proxy:
        told = drive(proxy.url, retrying=OFTEN).take(lambda c: c.events.follow(after=start), most=29)
        assert proxy.cuts > 20
    assert [each.job_id for each in told] == [handle.id for handle in handles[1:]]


@there
def test_a_list_of_few_among_many_goes_on_behind_empty_pages(
    base: str, drive: Drive, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE", 3)
    monkeypatch.setattr(route, "MAX_PAGES", 2)
    first = app.enqueue("rare")
    for _ in range(20):
        app.enqueue("mail")
    last = app.enqueue("rare")
    found = drive(base).take(lambda c: c.events.list(kind="rare"))
    assert [each.job_id for each in found] == [first.id, last.id]
    assert drive(base).take(lambda c: c.events.list(kind="none")) == []


@pytest.mark.slow
@there
def test_what_may_be_said_again_is_done_once_wherever_its_answer_is_cut(base: str, drive: Drive, app: App) -> None:
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
    for word, act in acts.items():
        needs = word in ("checkpoint", "settle", "fail", "release")
        whole = length(partial(_acted, act, worked if needs else None))
        last = whole - (20 if word == "jobs" else 1)  # times are not all of one length
        for place in (0, 1, 20, whole // 2, whole - 40, last):
            before = len(app.jobs.list(limit=1_000))
            job: Any = worked() if needs else None
            with Cutting(base, cut_at(iter([place])), part=1) as proxy:
                answer = drive(proxy.url).do(partial(act, job=job))
                assert proxy.cuts == 1, (word, place)
            made = len(app.jobs.list(limit=1_000)) - before - needs
            if word.startswith("enqueue"):
                handles = [answer] if word == "enqueue" else answer
                assert (made, [each.created for each in handles]) == (len(handles), [True] * len(handles)), place
            elif word in ("settle", "fail"):
                event_types = [each.type for each in app.jobs.handle(job.id).history() if each.attempt == job.attempt]
                assert (answer.settled, event_types.count("succeed") + event_types.count("fail")) == (True, 1), place
                assert answer.ending == {"settle": "succeeded", "fail": "retry"}[word]
            elif word == "release":
                assert [each.settled for each in answer] == [True], place
                straight.do(lambda c: c.leases.claim(lease, queues=["work"]))


@pytest.mark.slow
@there
def test_how_a_job_ended_is_answered_the_second_time_as_the_first(base: str, drive: Drive, app: App) -> None:
    driver = drive(base)
    lease = driver.do(lambda c: c.leases.open()).lease
    handle = app.enqueue("work", retry=Retry(max_attempts=2))
    for ending in ("retry", "bury"):
        (job,) = driver.do(lambda c: c.leases.claim(lease, wait=10))
        again = partial(_put_off, lease=lease, job=job)
        said = [driver.do(again) for _ in range(3)]
        assert [each.ending for each in said] == [ending] * 3
    assert handle.state() == "dead_letter"


def _acted(act: Callable[..., Any], make: Callable[[], Any] | None, client: Any) -> Any:
    return act(client, None if make is None else make())


def _put_off(client: Any, lease: str, job: Any) -> Any:
    return client.leases.settle(lease, job, "retry", after=0)
