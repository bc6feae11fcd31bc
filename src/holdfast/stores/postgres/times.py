"""Times that Python cannot hold. PostgreSQL knows ``infinity`` and years behind 9999, and shows the end of 9999 as the
year 10000 where its time zone is ahead of UTC. One such time must not keep a whole page, or a worker's turn, from being
read: it becomes the last day Python knows, or the first."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from psycopg import DataError, adapters
from psycopg.adapt import Loader
from psycopg.pq import Format

from holdfast.engine.times import FIRST, LAST

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer


class TimeLoader(Loader):
    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        usual = adapters.get_loader(oid, Format.TEXT)
        assert usual is not None
        self._load = usual(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            found: datetime = self._load(data)
            return found
        except DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST
