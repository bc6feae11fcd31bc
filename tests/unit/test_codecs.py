"""Decoders of records are built once per record, store and choice of fields."""

from __future__ import annotations

import pytest

from holdfast.engine.job import Event, Job
from holdfast.stores.codecs import Record
from holdfast.stores.postgres.codec import PostgresCodec
from holdfast.stores.sqlite.codec import SqliteCodec


@pytest.mark.req("ARCH")
def test_decoder_is_cached_per_record_store_and_fields() -> None:
    made = Record.decoder(Job, SqliteCodec())
    assert Record.decoder(Job, SqliteCodec()) is made
    others = [
        Record.decoder(Job, PostgresCodec()),
        Record.decoder(Event, SqliteCodec()),
        Record.decoder(Job, SqliteCodec(), raw=("payload",)),
        Record.decoder(Job, SqliteCodec(), skip=("payload",)),
    ]
    assert len({id(decoder) for decoder in (made, *others)}) == 5
