"""A PostgreSQL server that someone else runs, in place of the tests' own."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from typing_extensions import override

from tests.support.databases import Databases
from tests.support.servers import ServerError, StopMode


class GivenServer(Databases):
    """The server that `--postgres` names by its URL. A test that would stop it is skipped."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = urlsplit(url)
        if self._url.scheme not in ("postgres", "postgresql"):
            raise ServerError("--postgres takes a URL of this form: postgresql://user:password@host:port/dbname")
        with psycopg.connect(url) as connection:
            self.version = connection.info.server_version // 10000

    @override
    def dsn(self, dbname: str | None = None, *, user: str | None = None, password: str | None = None) -> str:
        url = self._url
        if dbname is not None:
            url = url._replace(path=f"/{quote(dbname, safe='')}")
        if user is not None:
            secret = quote(password or url.password or "", safe="")
            url = url._replace(netloc=f"{quote(user, safe='')}:{secret}@{url.netloc.rpartition('@')[2]}")
        return urlunsplit(url)

    def start(self) -> None:
        """It runs already."""

    def stop(self, mode: StopMode = "fast") -> None:
        pytest.skip("this test stops the server, and --postgres names one that is not ours to stop")

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
