"""Arrays in PostgreSQL's text format cannot be misread by the server."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from holdfast.errors import InvalidInput
from holdfast.stores.postgres import asyncpg_statements, connections  # which tells the driver of them
from holdfast.stores.postgres.codec import Ids, Numbers, Words, documents, ids, numbers, words

pytestmark = pytest.mark.req("DP-3")

SOME = [str(uuid.UUID(int=number * 7919)) for number in (1, 2**64, 2**114 + 5)]


def test_server_reads_ids_numbers_and_text_arrays(postgres_url: str) -> None:
    def read(array: bytes, kind: str) -> list[object]:
        row = connection.execute(f"select %s::{kind}[], pg_typeof(%s)::text", (array, array)).fetchone()
        assert row is not None
        assert row[1] == {"int": "integer"}.get(kind, kind) + "[]", "the server converts the array"
        answer: list[object] = row[0]
        return answer

    connection: Connection[TupleRow]
    with psycopg.connect(postgres_url) as connection:
        assert issubclass(connections.StoreConnection, Connection)
        assert list(map(str, read(ids(SOME), "uuid"))) == SOME
        assert read(numbers([1, 0, -5, 2**31 - 1]), "int") == [1, 0, -5, 2**31 - 1]
        assert read(words(["a", 'ß{},"\\', "", "a"]), "text") == ["a", 'ß{},"\\', "", "a"]
        texts = [None, '{"a": "ß, {}\\\\"}', None, "[1]"]
        stored = connection.execute("select array(select v::text from unnest(%s) v)", (documents(texts),)).fetchone()
        assert stored == (texts,)
        assert asyncpg_statements._elements(documents(texts)) == texts
        for empty, kind in ((ids([]), "uuid"), (numbers([]), "int"), (words([]), "text")):
            assert read(empty, kind) == []
    assert (type(ids([])), type(numbers([])), type(words([]))) == (Ids, Numbers, Words)


def test_ids_accept_upper_case_and_no_hyphens() -> None:
    assert ids([SOME[0].upper(), SOME[1].replace("-", ""), SOME[2]]) == ids(SOME)


@pytest.mark.parametrize(
    "odd",
    [
        [""],
        ["x" * 36],
        [" " * 36],
        [SOME[0] + "," + SOME[1]],
        [SOME[0][:-1], SOME[1] + "0"],
        [SOME[0][:-1] + " ", SOME[1]],
        [SOME[0][:-1] + "٣"],
        ["----" + "0" * 32],
        [SOME[0], "0" * 31 + "-----"],
    ],
)
def test_malformed_id_is_rejected(odd: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        ids(odd)
    assert refused.value.code == "invalid_id"


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_number_beyond_32_bits_is_rejected(number: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        numbers([1, number])
    assert refused.value.code == "invalid_input"
