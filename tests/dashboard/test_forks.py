"""The form that forks a job."""

from __future__ import annotations

import re

import httpx2
import pytest

from holdfast import App
from tests.api.test_forks import waiting

pytestmark = [pytest.mark.req("HF-10"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]


async def test_dashboard_forks_once_per_page(app: App, http: httpx2.AsyncClient) -> None:
    job = await waiting(app)
    page = await http.get(f"/jobs/{job}")
    assert "again: check that this is right" in page.text
    assert "1: quote &lt;b&gt;" in page.text
    (key,) = re.findall(r'name="key" value="([^"]+)"', page.text)
    sent = {"from_step": "2", "key": key, "reason": "wrong"}
    made = await http.post(f"/jobs/{job}/fork", data=sent)
    assert made.status_code == 303
    new = made.headers["location"].split("/jobs/")[1][:36]
    again = await http.post(f"/jobs/{job}/fork", data=sent)
    assert again.status_code == 303, again.text
    assert again.headers["location"].split("/jobs/")[1][:36] == new
    assert f"/jobs/{new}" in (await http.get(f"/jobs/{job}")).text
    assert f"/jobs/{job}" in (await http.get(f"/jobs/{new}")).text
    assert [step.name for step in await app.jobs.asteps(new)] == ["quote <b>"]
    refused = await http.post(f"/jobs/{job}/fork", data={"from_step": ""})
    assert refused.status_code == 303
    assert len(await app.jobs.alist(tag=f"fork:{job}")) == 1
