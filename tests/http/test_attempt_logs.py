"""The client reads logs and artifacts as the app does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import InvalidSetting, NotFound
from tests.app.conftest import NewApp
from tests.http.conftest import BELOW, Driver, service_of
from tests.support.http_server import serving
from tests.support.workers import work_off


@pytest.mark.req("JF-14", "SC-20", "SC-21")
def test_client_reads_same_logs_and_artifacts_as_app(
    new_app: NewApp, tmp_path: Path, drive: Callable[..., Driver]
) -> None:
    app = new_app(artifacts=tmp_path)

    @app.job()
    def talks(ctx: holdfast.SyncContext, name: str) -> None:
        ctx.log.info("hello %s", name)
        ctx.artifact("deep/a b.bin", data=bytes(range(256)))

    handle = talks.enqueue("bob")
    work_off(app)
    with serving(service_of(app)) as origin:
        driver = drive(origin + BELOW)
        assert driver.do(lambda client: client.jobs.log(handle.id)) == handle.log()
        assert driver.do(lambda client: client.jobs.handle(handle.id).log(1, tail=30)) == handle.log(1, tail=30)
        assert driver.do(lambda client: client.jobs.attempts(handle.id)) == app.jobs.attempts(handle.id)
        assert driver.do(lambda client: client.jobs.artifacts(handle.id)) == handle.artifacts()
        assert driver.do(lambda client: client.jobs.artifact(handle.id, "deep/a b.bin")) == bytes(range(256))
        with pytest.raises(NotFound) as missing:
            driver.do(lambda client: client.jobs.artifact(handle.id, "deep/a b.bin", 7))
        assert missing.value.code == "artifact_not_found"
        with pytest.raises(NotFound) as missing:
            driver.do(lambda client: client.jobs.log(handle.id, 9))
        assert missing.value.code == "attempt_not_found"
        with pytest.raises(InvalidSetting):
            driver.do(lambda client: client.jobs.log(handle.id, offset=1, tail=1))
