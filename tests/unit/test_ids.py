"""Ids are UUIDv7, ascend within a process, and are read back strictly."""

from __future__ import annotations

import itertools
import os
import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.ids import IdMaker, created_ms, parse_id, uuid7
from holdfast.errors import InvalidInput

pytestmark = pytest.mark.req("CX-2")

NOW = 1_764_000_000_000
milliseconds = st.integers(0, 2**48 - 1)


def maker_at(*times: int) -> IdMaker:
    """A maker whose clock gives these times, then stands still."""
    clock = itertools.chain(times, itertools.repeat(times[-1]))
    return IdMaker(lambda: next(clock) * 1_000_000, os.urandom)


def test_uuid7_layout_matches_rfc_9562() -> None:
    # The example of RFC 9562, appendix A.6.
    made = uuid7(0x017F22E279B0, bytes.fromhex("0cc318c4dc0c0c07398f"))
    assert str(made) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(milliseconds, st.binary(min_size=10, max_size=10))
def test_every_uuid7_has_its_version_variant_and_time(ms: int, random: bytes) -> None:
    made = uuid7(ms, random)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert created_ms(str(made)) == ms


@pytest.mark.parametrize(("ms", "random"), [(-1, bytes(10)), (2**48, bytes(10)), (0, bytes(9)), (0, bytes(16))])
def test_uuid7_rejects_values_out_of_range(ms: int, random: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        uuid7(ms, random)
    assert caught.value.code == "invalid_id"


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(0, 40))
def test_ids_ascend_whatever_the_clock_does(steps: list[int], batch: int) -> None:
    times = list(itertools.accumulate(steps, initial=NOW))
    maker = maker_at(*times)
    made = [maker() for _ in times] + maker.many(batch) + [maker()]
    assert made == sorted(set(made))
    for text in made:
        assert parse_id(text) == text
        assert (uuid.UUID(text).version, uuid.UUID(text).variant) == (7, uuid.RFC_4122)
        assert NOW <= created_ms(text) <= max(times)


def test_id_time_follows_clock_forward_but_not_backward() -> None:
    maker = maker_at(NOW, NOW + 7, NOW - 1_000)
    assert [created_ms(maker()) for _ in range(3)] == [NOW, NOW + 7, NOW + 7]


def test_clock_before_1970_counts_from_zero() -> None:
    maker = maker_at(-5)
    assert [created_ms(maker()), created_ms(maker())] == [0, 0]


def test_clock_in_wrong_unit_is_rejected() -> None:
    maker = maker_at(NOW * 1_000)
    for make in (maker, lambda: maker.many(2)):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.code == "invalid_id"


def test_batch_ascends_across_counter_carries() -> None:
    # Entropy of ones starts the counter just below a carry into its upper twelve bits.
    maker = IdMaker(lambda: NOW * 1_000_000, lambda size: b"\xff" * size)
    made = [*maker.many(2), *maker.many(3 * 2**14), maker()]
    assert len(made) == 3 * 2**14 + 3
    assert made == sorted(set(made))
    assert all(parse_id(text) == text for text in made)


def test_full_counter_carries_into_millisecond() -> None:
    maker = maker_at(NOW)
    maker._counter = itertools.count(2**26 - 2)
    made = [maker(), *maker.many(3), maker()]
    assert [created_ms(text) - NOW for text in made] == [0, 0, 1, 1, 1]
    assert made == sorted(set(made))


def test_empty_batch_has_no_ids() -> None:
    assert maker_at(NOW).many(0) == []


def test_single_ids_and_batches_have_the_same_layout() -> None:
    one, many = (IdMaker(lambda: NOW * 1_000_000, lambda size: b"\x5a" * size) for _ in range(2))
    assert [one() for _ in range(5)] == many.many(5)


def test_ids_are_distinct_across_threads_and_ascend_within_each() -> None:
    ticking = itertools.count(NOW * 8)
    maker = IdMaker(lambda: next(ticking) // 8 * 1_000_000, os.urandom)
    start = threading.Barrier(8)
    made: list[list[str]] = [[] for _ in range(8)]

    def work(mine: list[str]) -> None:
        start.wait()
        for _ in range(200):
            mine.append(maker())
            mine.extend(maker.many(3))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [text for mine in made for text in mine]
    assert len(set(everything)) == len(everything) == 8 * 200 * 4
    assert all(mine == sorted(mine) for mine in made)
    assert maker() > max(everything)


def test_later_id_sorts_after_earlier_id_of_another_thread() -> None:
    maker, made = maker_at(NOW), []
    for _ in range(50):
        thread = threading.Thread(target=lambda: made.append(maker()))
        thread.start()
        thread.join()
        made.append(maker())
    assert made == sorted(set(made))


def test_makers_in_same_state_after_a_fork_make_different_ids() -> None:
    def entropy(size: int) -> bytes:
        return bytes(size) if size == 3 else os.urandom(size)

    parent, child = (IdMaker(lambda: NOW * 1_000_000, entropy) for _ in range(2))
    made = [parent(), child(), *parent.many(100), *child.many(100)]
    assert len(set(made)) == len(made)
    assert parent()[:23] == child()[:23]  # identical up to the random part


@given(st.uuids())
def test_parse_id_accepts_every_common_spelling(value: uuid.UUID) -> None:
    text = str(value)
    for form in (value, text, text.upper(), value.hex, value.hex.upper()):
        assert parse_id(form) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 36,
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f\n",
        " 017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e279b0-7cc3-98c4-dc0c0c07398f-",
        "٠" * 32,
        "\ud800" * 36,
        "a" * 1_000_000,
        7,
        None,
        b"017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
    ],
)
def test_parse_id_rejects_malformed_ids_with_short_message(text: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_id(text)
    assert caught.value.code == "invalid_id"
    assert len(str(caught.value).encode()) < 400


def test_created_ms_rejects_ids_without_time() -> None:
    with pytest.raises(InvalidInput) as caught:
        created_ms("9f4e1d0c-79b0-4cc3-98c4-dc0c0c07398f")
    assert caught.value.code == "invalid_id"
