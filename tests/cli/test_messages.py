"""`holdfast jobs send | values | stream`."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast import App, Context
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-11", "HF-17")


def test_talk_to_a_job(holdfast: Holdfast, store: Store) -> None:
    with closing(App(store.url)) as app:

        @app.job
        async def talk(ctx: Context) -> None:
            await ctx.stream("out").write("hello\n")
            await ctx.publish("state", {"ready": True})
            await ctx.stream("out").write({"n": (await ctx.receive("go")).data})

        handle = talk.enqueue()
        work_off(app)
        sent = holdfast("jobs", "send", handle.id, "go", "7", "--key", "k")
        assert (sent.exit_code, sent.stderr) == (0, "Sent.\n")
        again = holdfast("jobs", "send", handle.id, "go", "7", "--key", "k", "--json")
        assert document(again)["id"] == sent.stdout.strip()
        assert "Already sent" in again.stderr
        work_off(app)
        values = document(holdfast("jobs", "values", handle.id, "--json"))
        assert [(each["name"], each["value"]) for each in values] == [("state", {"ready": True})]
        assert "ready" in holdfast("jobs", "values", handle.id).stdout
        stream = holdfast("jobs", "stream", handle.id, "out")
        assert (stream.exit_code, stream.stdout) == (0, 'hello\n{"n": 7}\n')
        (first, _) = holdfast("jobs", "stream", handle.id, "out", "--json", "--no-follow").stdout.splitlines()
        assert '"data": "hello\\n"' in first
        rest = holdfast("jobs", "stream", handle.id, "out", "--after", "1-1-1")
        assert rest.stdout == '{"n": 7}\n'
        ended = holdfast("jobs", "send", handle.id, "go")
        assert ended.exit_code == 4
