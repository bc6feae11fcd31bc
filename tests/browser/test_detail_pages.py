"""Approvals, links, dead letters, workflows and schedules in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Dialog, expect
from starlette.requests import Request

from holdfast import App, State
from holdfast.app.internals import kinds_of
from holdfast.features.tokens.model import EVERY_SCOPE
from holdfast.server.app import make_service
from holdfast.server.auth import Identity, is_local
from tests.browser.conftest import Open, Site, in_new_thread
from tests.browser.test_pages import DARK_CONTRAST, NARROW
from tests.dashboard.scene import NAME, Scene, play, the
from tests.support.http_server import serving
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.slow]

ADA = Identity("ada", "default", EVERY_SCOPE, ambient=True, whole=True)


@dataclass(frozen=True, slots=True)
class Stage:
    site: Site
    scene: Scene


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The user is not the requester of the jobs."""
    folder = tmp_path_factory.mktemp("scene")
    with closing(App(f"sqlite:///{folder}/scene.db", name="tests", enqueued_by="tester")) as app:
        scene = in_new_thread(lambda: play(app))

        def known(request: Request) -> Identity | None:
            return ADA if is_local(request) else None

        with serving(make_service(app, authenticate=known)) as address:
            yield Stage(Site(address, app), scene)


@pytest.fixture
def site(stage: Stage) -> Site:
    return stage.site


@pytest.mark.slow
def test_detail_pages_are_accessible_and_run_no_user_input(open_page: Open, stage: Stage) -> None:
    """Axe in both color schemes, no console message (such as a policy violation), and no horizontal scrolling."""
    scene, schedule = stage.scene, f"/schedules/{quote(NAME, safe='')}"
    group = f"/dead-letters/{scene.group}"
    paths = (
        *(f"/approvals/{scene.approval}", f"/decide/{scene.token}", group, f"{group}/jobs/{scene.dead}/edit"),
        *(f"/workflows/{scene.workflow}", schedule, f"{schedule}?edit=1"),
    )
    page = open_page("/approvals")
    ran: list[str] = []

    def opened(dialog: Dialog) -> None:
        ran.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", opened)
    wrong: list[str] = []
    for path in paths:
        page.emulate_media(color_scheme="light")
        page.goto(f"{stage.site.address}{path}")
        result = Axe().run(page, options={"resultTypes": ["violations"]})
        if result.violations_count:
            wrong.append(f"{path}: {result.generate_report()}")
        page.emulate_media(color_scheme="dark")
        wrong += [f"{path}, dark: {each}" for each in page.evaluate(DARK_CONTRAST)]
        page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        if not page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"):
            wrong.append(f"{path} is wider than a narrow screen")
        page.set_viewport_size({"width": 1280, "height": 800})
    assert not wrong, "\n".join(wrong)
    assert not ran


@pytest.mark.slow
def test_workflow_graph_links_to_its_jobs(open_page: Open, stage: Stage) -> None:
    page = open_page(f"/workflows/{stage.scene.workflow}")
    drawn = page.locator("[data-graph] svg a")
    expect(drawn).to_have_count(3)
    expect(page.locator("[data-graph] svg > path")).to_have_count(3)
    expect(page.locator("svg.gantt rect")).to_have_count(3)
    expect(drawn.filter(has_text="last")).to_contain_text("part · succeeded")
    drawn.filter(has_text="last").click()
    page.wait_for_url("**/jobs/*")
    plain = open_page(f"/workflows/{stage.scene.workflow}", java_script_enabled=False)
    expect(plain.locator("svg.gantt rect")).to_have_count(3)
    expect(plain.locator("[data-graph]")).to_be_hidden()
    expect(plain.get_by_role("region", name="Jobs of the workflow").locator("tbody tr")).to_have_count(3)


@pytest.mark.slow
def test_schedule_is_edited_with_a_preview(open_page: Open, stage: Stage) -> None:
    app = stage.site.app
    page = open_page("/schedules", expected=("422",))
    page.get_by_role("link", name=NAME).click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Timing").fill("0 99 * * *")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid_schedule")
    page.get_by_label("Timing").fill("0 9 * * MON-FRI")
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("region", name="Next runs").locator("tbody tr")).to_have_count(10)
    expect(page.get_by_role("region", name="Next runs")).to_contain_text("09:00:00 JST")
    stored = the(app.schedules.get(NAME))
    assert stored.zone == "Europe/Paris", "a preview saves nothing"
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".flash")).to_contain_text("Saved schedule")
    stored = the(app.schedules.get(NAME))
    assert (stored.timing, stored.zone) == ("0 9 * * MON-FRI", "Asia/Tokyo")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#ask-question")).to_contain_text("Delete schedule")
    page.get_by_role("button", name="Go back", exact=True).click()
    assert app.schedules.get(NAME) is not None


@pytest.mark.slow
def test_group_is_redriven_and_the_rest_discarded(open_page: Open, stage: Stage) -> None:
    app, group = stage.site.app, f"/dead-letters/{stage.scene.group}"
    page = open_page("/dead-letters")
    page.get_by_role("link", name="ValueError").click()
    page.get_by_label("Maximum per second").first.fill("500")
    page.get_by_role("button", name="Redrive", exact=True).first.click()
    page.wait_for_url("**/operations/*")
    app.operations.run(page.url.rsplit("/", 1)[1])
    expect(page.locator("main")).to_contain_text("2 of 2 done")
    in_new_thread(lambda: work_off(app))  # they fail again
    page.goto(f"{stage.site.address}{group}")
    row = page.locator("tbody tr", has_text=stage.scene.dead)
    row.get_by_placeholder("reason").fill("not needed")
    row.get_by_role("button", name="Discard").click()
    expect(page.locator("#ask-question")).to_contain_text("permanently?")
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator(".flash")).to_contain_text("discarded")
    assert the(app.jobs.get(stage.scene.dead)).state is State.CANCELLED


@pytest.mark.slow
def test_approval_is_decided_by_form_and_by_link(open_page: Open, stage: Stage) -> None:
    app = stage.site.app
    page = open_page("/approvals", expected=("422",))
    page.get_by_role("link", name="Decide", exact=True).click()
    page.locator("[name='f:limit']").fill("5000")
    page.locator("[name='f:reason']").fill("fine")
    page.get_by_label("Comment").fill("go ahead")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("alert")).to_have_text("limit must be at most 1000")
    expect(page.get_by_label("Comment")).to_have_value("go ahead")
    page.locator("[name='f:limit']").fill("40")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".flash")).to_contain_text("is approved")
    expect(page.get_by_role("region", name="Decisions")).to_contain_text("ada")
    (vote,) = app.approvals.get(stage.scene.approval).votes
    assert (vote.person, vote.how, vote.data["limit"]) == ("ada", "dashboard", 40)

    kinds_of(app)["pay"].kind.enqueue()
    in_new_thread(lambda: work_off(app))
    (approval,) = app.approvals.list()
    token = app.approvals.issue_token(approval.id)
    link = open_page(f"/decide/{token}", java_script_enabled=False)
    assert app.approvals.get(approval.id).votes == []
    link.get_by_label("Your name").fill("eve")
    link.get_by_role("button", name="Deny").click()
    expect(link.locator(".flash")).to_contain_text("is denied")
    (vote,) = app.approvals.get(approval.id).votes
    assert (vote.person, vote.how, vote.verdict) == ("eve", "link", "deny")
