"""More schedules than a page lists: the page says so, and the filter finds every name."""

from __future__ import annotations

import re

import httpx2
import pytest

from holdfast import App
from holdfast.features.schedules import pages as schedules

pytestmark = pytest.mark.req("JF-16", "SC-9")

MORE = "Filter by name or kind"


def rows(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', page)


async def test_filter_finds_schedules_beyond_the_first_page(
    app: App, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "LISTED", 2)
    for name in ("a", "b", "c", "d", "Éa", "zeta"):
        app.schedules.add(name, "@daily", kind="report" if name < "c" else "other")
    page = (await http.get("/schedules")).text
    assert (rows(page), MORE in page) == (["a", "b"], True)
    page = (await http.get("/schedules?kind=report")).text
    assert (rows(page), MORE in page) == (["a", "b"], False)
    page = (await http.get("/schedules?name=ZETA")).text
    assert (rows(page), MORE in page) == (["zeta"], False)
    page = (await http.get("/schedules?name=éA")).text
    assert (rows(page), MORE in page) == (["Éa"], False)
    page = (await http.get("/schedules?name=a")).text
    assert (len(rows(page)), MORE in page) == (2, True), "three names match"
    monkeypatch.setattr(schedules, "SEARCHED", 2)
    assert rows((await http.get("/schedules?name=zeta")).text) == [], "the search is limited"
