"""Rows into records: how a record is made is worked out once, whichever codec of a store asks."""

from __future__ import annotations

import pytest

from holdfast.engine.job import Event, Job
from holdfast.stores.codecs import Record
from holdfast.stores.postgres.codec import PostgresCodec
from holdfast.stores.sqlite.codec import SqliteCodec


@pytest.mark.req("ARCH")
def test_a_decoder_is_made_once_for_each_record_store_and_choice() -> None:
    made = Record.decoder(Job, SqliteCodec())
    assert Record.decoder(Job, SqliteCodec()) is made
    others = [
        Record.decoder(Job, PostgresCodec()),
        Record.decoder(Event, SqliteCodec()),
        Record.decoder(Job, SqliteCodec(), raw=("payload",)),
        Record.decoder(Job, SqliteCodec(), skip=("payload",)),
    ]
    assert len({id(each) for each in (made, *others)}) == 5
