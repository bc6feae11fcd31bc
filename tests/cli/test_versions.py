"""`holdfast versions`."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast import App, Context
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-10")


def test_versions_held_jobs_and_patches_are_listed_and_jobs_moved(holdfast: Holdfast, url: str) -> None:
    assert "HOLDFAST_APP_VERSION" in holdfast("versions", "list").stderr
    assert "No job is held." in holdfast("versions", "held").stderr
    assert "No job has recorded a patch." in holdfast("versions", "patches").stderr
    with closing(App(url, version="1.0")) as old, closing(App(url, version="2.0")) as new:

        @old.job("pay", on_new_version="pin")
        async def pay(ctx: Context) -> None:
            await ctx.patched("stock")
            await ctx.step("charge", lambda: None)
            await ctx.wait_for_event("go")

        @new.job("pay", on_new_version="pin")
        async def pays(ctx: Context) -> None:
            await ctx.step("reserve", lambda: None)

        job = pay.enqueue()
        work_off(old)
        listed = holdfast("versions", "list").stdout
        assert "1.0" in listed
        assert "no" in listed.split()
        assert "keep it" not in holdfast("versions", "patches").stdout
        assert "retire it" in holdfast("versions", "patches").stdout
        moved = holdfast("versions", "move", "1.0", "--to", "2.0", "--job", job.id, "--reason", "gone")
        assert moved.stdout + moved.stderr == "Moved 1 job from version 1.0 to 2.0.\n"
        old.send_event("go")
        work_off(new)
        shown = holdfast("versions", "held").stdout
        assert "patch stock" in shown
        assert "step reserve" in shown
        assert [each["job_id"] for each in document(holdfast("versions", "held", "--json"))] == [job.id]
        assert "its recorded steps do not fit the code" in holdfast("why", job.id).stdout
        health = holdfast("health")
        assert "held_jobs" in health.stdout
        assert "unserved_versions" in health.stdout
    assert document(holdfast("versions", "list", "--json", "--tenant", "acme")) == []
    for wrong in (["1.0", "--to", "1.0"], ["", "--to", "2.0"], ["1.0", "--to", "2\x1b[31m0"]):
        result = holdfast("versions", "move", *wrong, "--json")
        assert (result.exit_code, error_of(result)["code"] in ("invalid_setting", "invalid_name")) == (2, True)
