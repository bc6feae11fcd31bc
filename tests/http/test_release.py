"""Jobs released over HTTP run again, unless they run at most once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import App, Retry
from tests.http.conftest import Driver

pytestmark = pytest.mark.req("SC-7", "JF-14")

Drive = Callable[..., Driver]

both_forms = pytest.mark.parametrize(
    ("url", "form"), [("sqlite", "blocking"), ("postgres", "awaiting")], indirect=["url"]
)


@pytest.mark.slow
@both_forms
def test_released_at_most_once_job_is_dead_lettered(base: str, drive: Drive, app: App) -> None:
    handle, plain = app.enqueue("pay", retry=Retry(max_crashes=0)), app.enqueue("mail")
    driver = drive(base)
    lease = driver.do(lambda c: c.leases.open()).lease
    jobs = driver.do(lambda c: c.leases.claim(lease, want=2))
    for _ in range(2):  # repeating it gets the same response
        back = driver.do(lambda c: c.leases.release(lease, *jobs))
        assert {each.job: (each.settled, each.ending) for each in back} == {
            handle.id: (True, "dead_letter"),
            plain.id: (True, "snooze"),
        }
    assert handle.get().error_code == "interrupted"
    assert handle.state() == "dead_letter"
    assert [each.id for each in driver.do(lambda c: c.leases.claim(lease, want=2, wait=10))] == [plain.id]
