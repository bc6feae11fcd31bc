"""Actions of the dashboard: dead letters, workflows, schedules, queues, tenants, audit, tokens and webhooks."""

from __future__ import annotations

import asyncio
import html
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import quote

import httpx2
import pytest

from holdfast import App, PayloadPolicy, Retry, State, SyncContext
from holdfast.app.internals import kinds_of, session_of
from holdfast.errors import NotFound
from holdfast.features.audit import pages as audit
from holdfast.features.tokens.model import Scope
from holdfast.features.webhooks.model import DELIVER, WebhookDelivery
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from holdfast.stores.requests import JobFilter
from tests.api.conftest import HERE, client_of
from tests.dashboard.scene import HOSTILE, Scene, declare, is_inert, play, the
from tests.support.stores import new_id
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("JF-16"), pytest.mark.parametrize("url", ["sqlite"], indirect=True)]


@pytest.fixture
async def scene(app: App) -> Scene:
    return await asyncio.to_thread(play, app)


@pytest.mark.req("DP-15")
async def test_dead_letters_are_redriven_discarded_edited_and_noted(
    app: App, http: httpx2.AsyncClient, scene: Scene
) -> None:
    group = f"/dead-letters/{scene.group}"
    first, second = (job.id for job in app.dead_letters.jobs(scene.group))
    one = f"{group}/jobs/{first}"
    assert (await http.post(one, data={"action": "discard"})).status_code == 422, "a reason is required"
    confirmation = await http.post(one, data={"action": "discard", "reason": "old"})
    assert (confirmation.status_code, 'name="confirmed"' in confirmation.text) == (200, True)
    assert the(app.jobs.get(first)).state is State.DEAD_LETTER
    assert (await http.post(one, data={"action": "discard", "reason": "old", "confirmed": "yes"})).status_code == 303
    assert the(app.jobs.get(first)).state is State.CANCELLED
    assert (await http.post(one, data={"action": "redrive"})).status_code == 404

    assert (await http.post(f"{group}/note", data={"note": "known: " + HOSTILE})).status_code == 303
    assert the(the(app.dead_letters.group(scene.group)).note).startswith("known: <img src=x")

    broken = await http.post(f"{group}/jobs/{second}/edit", data={"payload": '{"text": '})
    assert (broken.status_code, "is not valid JSON" in broken.text) == (422, True)
    unfit = await http.post(f"{group}/jobs/{second}/edit", data={"payload": '{"other": 1}'})
    assert unfit.status_code == 422
    edited = await http.post(f"{group}/jobs/{second}/edit", data={"payload": '{"text": "mended"}', "reason": "typo"})
    new = edited.headers["location"].rsplit("/", 1)[1]
    await asyncio.to_thread(work_off, app)
    assert the(app.jobs.get(new)).state is State.SUCCEEDED
    assert the(app.jobs.get(second)).state is State.CANCELLED


@pytest.mark.req("DP-15")
async def test_group_is_redriven_as_a_tracked_operation(app: App, http: httpx2.AsyncClient, scene: Scene) -> None:
    group = f"/dead-letters/{scene.group}"
    for bad in ({"rate": "fast"}, {"rate": "-1"}, {"max_attempts": "0"}, {"max_attempts": "1e9"}, {"delay": "soon"}):
        assert (await http.post(f"{group}/redrive", data=bad)).status_code == 422, bad
    assert app.operations.list() == []
    confirmation = await http.post(f"{group}/discard", data={"reason": "x"})
    assert 'name="confirmed"' in confirmation.text
    started = await http.post(f"{group}/redrive", data={"rate": "1000", "reason": "mended", "delay": "2h"})
    assert started.status_code == 303
    (operation,) = app.operations.list()
    assert the(operation.run_at) > operation.created_at
    assert started.headers["location"] == f"/operations/{operation.id}"
    assert (await http.get(started.headers["location"])).status_code == 200
    await asyncio.to_thread(app.operations.run, operation.id)
    assert the(app.operations.get(operation.id)).done == 2
    assert (await http.get(group)).text.count("No open dead letters") == 1


@pytest.mark.req("SC-9")
async def test_schedule_is_previewed_before_it_is_saved(app: App, http: httpx2.AsyncClient, scene: Scene) -> None:
    path = f"/schedules/{quote(scene.schedule, safe='')}"
    form = {"timing": "0 9 * * MON-FRI", "tz": "Asia/Tokyo", "kind": "part", "missed": "skip", "overlap": "skip"}
    form["payload"] = '{"n": 8}'
    before = app.schedules.get(scene.schedule)
    preview = await http.post(path, data=form | {"do": "preview"})
    assert (preview.status_code, preview.text.count("09:00:00 JST")) == (200, 10)
    assert app.schedules.get(scene.schedule) == before, "a preview saves nothing"
    for wrong in ({"timing": "61 * * * *"}, {"tz": "Mars"}, {"payload": "["}, {"jitter": "9d"}):
        answer = await http.post(path, data=form | wrong | {"do": "save"})
        assert (answer.status_code, 'role="alert"' in answer.text) == (422, True), wrong
    assert app.schedules.get(scene.schedule) == before
    assert (await http.post(path, data=form | {"do": "save"})).headers["location"] == path
    now = the(app.schedules.get(scene.schedule))
    assert (now.timing, now.zone, now.payload, now.missed) == ("0 9 * * MON-FRI", "Asia/Tokyo", {"n": 8}, "skip")

    for do, state in (("pause", "paused"), ("resume", "active")):
        assert (await http.post(path, data={"do": do})).status_code == 303
        assert the(app.schedules.get(scene.schedule)).state == state
    ran = await http.post(path, data={"do": "run"})
    job = ran.headers["location"].rsplit("/", 1)[1]
    assert the(app.jobs.get(job)).payload == {"n": 8}
    assert job in (await http.get(path)).text
    assert (await http.post(path, data={"do": "run"})).status_code == 409, "overlap is not allowed"
    assert (await http.post(path, data={"do": "nothing"})).status_code == 422
    assert 'name="confirmed"' in (await http.post(path, data={"do": "delete"})).text
    assert (await http.post(path, data={"do": "delete", "confirmed": "yes"})).status_code == 303
    with pytest.raises(NotFound):
        app.schedules.get(scene.schedule)

    previewed = await http.post("/new/schedule", data=form | {"name": "new", "do": "preview"})
    assert "09:00:00 JST" in previewed.text
    assert app.schedules.list() == []
    assert (await http.post("/new/schedule", data=form | {"name": "new", "do": "save"})).status_code == 303
    taken = await http.post("/new/schedule", data=form | {"name": "new", "do": "save"})
    assert (taken.status_code, "schedule_exists" in taken.text) == (422, True)


@pytest.mark.req("SC-17")
async def test_workflow_is_cancelled_and_resumed(app: App, http: httpx2.AsyncClient) -> None:
    declare(app)
    flow = app.workflow("publish")
    first = flow.add(kinds_of(app)["broken"].kind, "bad", name="first")
    flow.add(kinds_of(app)["part"].kind, 2, after=first, name="then")
    id_ = flow.start().id
    await asyncio.to_thread(work_off, app)
    page = await http.get(f"/workflows/{id_}")
    assert "Resume" in page.text
    assert "skipped" in page.text
    assert (await http.post(f"/workflows/{id_}/resume")).status_code == 303
    assert the(app.workflows.get(id_)).open == 2
    assert 'name="confirmed"' in (await http.post(f"/workflows/{id_}/cancel")).text
    assert (await http.post(f"/workflows/{id_}/cancel", data={"confirmed": "yes"})).status_code == 303
    assert the(app.workflows.get(id_)).status == "cancelled"
    assert (await http.post(f"/workflows/{id_}/cancel", data={"confirmed": "yes"})).status_code == 409


@pytest.mark.req("DP-18")
async def test_tenant_user_pauses_only_their_tenant(app: App, http: httpx2.AsyncClient) -> None:
    what = {"what": "queue", "name": "mail", "reason": "SMTP is down", "for": "1h"}
    async with client_of(app, role="operator", tenant="acme") as acme:
        assert (await acme.post("/pause", data=what | {"reason": ""})).status_code == 422
        assert (await acme.post("/pause", data=what | {"whose": "all"})).status_code == 403
        assert (await acme.post("/pause?tenant=default", data=what)).status_code == 303
        ((pause),) = session_of(app).run(session_of(app).store.pauses.list("*"))
        assert (pause.tenant, pause.scope, pause.name) == ("acme", "queue", "mail")
        assert pause.until is not None
        assert "SMTP is down" in (await acme.get("/queues")).text
        assert "SMTP is down" not in (await http.get("/queues")).text
        everything = await acme.post("/pause", data={"what": "everything", "reason": "stop", "confirmed": "yes"})
        assert everything.status_code == 303
        assert {row.what for row in session_of(app).run(session_of(app).store.pauses.list("*"))} == {
            "everything of tenant acme",
            "queue mail of tenant acme",
        }
        for scope in ("queue", "everything"):
            assert (await acme.post("/resume", data={"what": scope, "name": "mail"})).status_code == 303
    confirmation = await http.post(
        "/pause", data={"what": "everything", "whose": "all", "reason": "fire", "back": "/system"}
    )
    assert 'name="confirmed"' in confirmation.text
    sure = {"what": "everything", "whose": "all", "reason": "fire", "back": "/system", "confirmed": "yes"}
    assert (await http.post("/pause", data=sure)).headers["location"] == "/system"
    assert "fire" in (await http.get("/queues")).text
    async with client_of(app, role="admin", tenant="acme") as acme:
        assert (await acme.post("/resume", data={"what": "everything", "whose": "all"})).status_code == 403
    assert (await http.post("/resume", data=sure)).status_code == 303
    assert app.pauses.list() == []


@pytest.mark.req("JF-12", "SC-16")
async def test_tenant_user_sees_own_row_and_cannot_raise_limits(app: App, http: httpx2.AsyncClient) -> None:
    for tenant in ("acme", "globex"):
        with app.tenant(tenant):
            app.enqueue("x", {})
    terms = {"name": "acme", "max_pending": "50", "max_running": "5", "rate": "10/s", "weight": "3"}
    async with client_of(app, role="admin", tenant="acme") as acme:
        assert (await acme.post("/tenants", data=terms)).status_code == 403
        assert (await acme.post("/tenants/fair", data={"on": "yes"})).status_code == 403
        assert (await acme.post("/audit/verify")).status_code == 403
        assert (await acme.post("/executors", data={"label": "x"})).status_code == 403
        own = await acme.get("/tenants")
        assert '<th scope="row">acme' in own.text
        assert "globex" not in own.text
        assert (await acme.post("/limits", data={"scope": "queue", "name": "q", "concurrency": "2"})).status_code == 303
    for wrong in ({"max_pending": "-1"}, {"weight": "9999999"}, {"rate": "often"}, {"name": "*"}):
        assert (await http.post("/tenants", data=terms | wrong)).status_code == 422, wrong
    assert (await http.post("/tenants", data=terms)).status_code == 303
    acme_tenant = app.tenants.get("acme")
    assert (acme_tenant.max_pending, acme_tenant.max_running, acme_tenant.rate, acme_tenant.weight) == (50, 5, 10, 3)
    every = await http.get("/tenants")
    assert "1 of 50" in every.text
    assert "globex" in every.text
    with app.tenant("acme"):
        assert [(limit.name, limit.concurrency) for limit in app.limits.list() if limit.scope == "queue"] == [("q", 2)]


@pytest.mark.req("HF-4")
async def test_audit_trail_is_filtered_and_verified(app: App, http: httpx2.AsyncClient, scene: Scene) -> None:
    listed = await http.get("/audit?subject=limit&actor=tester")
    assert "mail</td>" in "".join(listed.text.split())
    assert "No matching entries" in (await http.get("/audit?actor=nobody")).text
    dead = await http.get("/audit?show=events&type=dead_letter&subject=broken")
    assert dead.text.count("dead letter</span>") == 2
    for wrong in ("since=yesterday", "since=0001-01-01", "before=0", "before=1e9", "before=" + "9" * 30):
        assert (await http.get(f"/audit?{wrong}")).status_code == 422, wrong
    verdict = await http.post("/audit/verify", data={"seals": "10"})
    assert "The ledger matches its seals" in verdict.text
    anchor = app.audit.anchor()
    other = f"{anchor.number}:{'0' * 64}"
    verdict = await http.post("/audit/verify", data={"anchor": other})
    assert "The ledger does not match its seals" in verdict.text
    assert (await http.post("/audit/verify", data={"seals": "5001"})).status_code == 422
    async with audit._verifying:
        busy = await http.post("/audit/verify")
    assert (busy.status_code, "verify_running" in busy.text) == (409, True)
    doctor = await http.post("/system/doctor")
    assert (doctor.status_code, "Findings" in doctor.text) == (200, True)


async def test_restricted_data_is_on_no_page(app: App, http: httpx2.AsyncClient) -> None:
    @app.job("secretly", retry=Retry(max_attempts=1), payload_rules=PayloadPolicy(restricted=True))
    async def secretly(pin: str) -> None:
        raise ValueError("no")

    app.payload_rules._sync_declarations("*")
    job = secretly.enqueue("canary-4711")
    app.schedules.add("nightly", "@daily", kind="secretly", payload={"pin": "canary-4711"})
    await asyncio.to_thread(work_off, app)
    (group,) = app.dead_letters.groups()
    pages: tuple[str, ...] = (
        f"/dead-letters/{group.fingerprint}",
        f"/dead-letters/{group.fingerprint}/jobs/{job.id}/edit",
    )
    for page in (
        *pages,
        "/schedules/nightly",
        "/schedules/nightly?edit=1",
        "/schedules",
        "/audit",
        "/system",
        "/templates",
        "/kinds/secretly",
    ):
        shown = await http.get(page)
        assert (shown.status_code, "canary-4711" in shown.text) == (200, False), page
    form = {"timing": "@weekly", "kind": "secretly", "payload": "", "do": "save"}
    assert (await http.post("/schedules/nightly", data=form)).status_code == 303
    stored = the(session_of(app).run(session_of(app).store.schedules.get("nightly", "default")))
    assert stored.payload == {"pin": "canary-4711"}, "an empty field keeps the payload"


async def test_token_is_shown_once_and_revoked(app: App, http: httpx2.AsyncClient) -> None:
    assert (await http.post("/tokens", data={"name": "ci", "role": "king"})).status_code == 422
    assert (await http.post("/tokens", data={"name": "ci"})).status_code == 422, "a token needs a role"
    shown = await http.post("/tokens", data={"name": HOSTILE[:40], "role": ["viewer", "producer"], "expires": "30d"})
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
    (token,) = app.tokens.list()
    assert (token.tenant, set(token.roles)) == ("default", {"viewer", "producer"})
    match = re.search(r"hf_[\w-]{49}", shown.text)
    assert match is not None
    listed = await http.get("/tokens?sessions=1")
    assert match[0] not in listed.text
    assert is_inert(listed.text)
    assert 'name="confirmed"' in (await http.post("/tokens/revoke", data={"id": token.id})).text
    assert the(app.tokens.list()[0]).revoked_at is None
    assert (await http.post("/tokens/revoke", data={"id": token.id, "confirmed": "yes"})).status_code == 303
    assert app.tokens.list()[0].revoked_by == "tester"
    async with client_of(app, role="admin", tenant="acme") as acme:
        assert (await acme.post("/tokens", data={"name": "x", "role": "admin", "whose": "all"})).status_code == 403
        assert (await acme.post("/tokens", data={"name": "x", "role": "admin"})).status_code == 200
        assert (await acme.post("/tokens/revoke", data={"id": token.id, "confirmed": "yes"})).status_code == 404
    # As over the API, a token cannot have more rights than its issuer.
    keeper = Identity("keeper", "acme", frozenset({Scope.ADMIN, Scope.READ}))
    service = make_service(app, authenticate=lambda _: keeper)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url=HERE) as narrow:
        for role in ("admin", "approver", "executor", "operator"):
            assert (await narrow.post("/tokens", data={"name": "x", "role": role})).status_code == 403, role
        assert (await narrow.post("/tokens", data={"name": "x", "role": "viewer"})).status_code == 200
    async with client_of(app, role="admin", tenant="acme") as acme:
        assert token.id not in (await acme.get("/tokens")).text
    assert {each.tenant for each in app.tokens.list(tenant="*")} == {"default", "acme"}


@pytest.mark.req("SC-15")
async def test_webhook_is_added_tested_and_removed(app: App, http: httpx2.AsyncClient) -> None:
    new = {"name": "ops", "url": "https://hooks.example/in?key=canary-4711", "secrets": "OPS_HOOK"}
    assert (await http.post("/webhooks", data=new | {"url": "ftp://x"})).status_code == 422
    assert (await http.post("/webhooks", data=new)).headers["location"] == "/webhooks/ops"
    assert (await http.post("/webhooks", data=new)).status_code == 409
    for page in ("/webhooks", "/webhooks/ops", "/webhooks/ops?failed=1"):
        shown = await http.get(page)
        assert (shown.status_code, "hooks.example/in" in shown.text, "canary-4711" in shown.text) == (200, True, False)
    ping = await http.post("/webhooks/ops/send")
    job = the(app.jobs.get(ping.headers["location"].rsplit("/", 1)[1]))
    assert job.kind == "webhook.deliver"
    assert (await http.post("/webhooks/ops", data={"do": "disable"})).status_code == 422, "a reason is required"
    for do, enabled in (({"do": "disable", "reason": HOSTILE}, False), ({"do": "enable"}, True)):
        assert (await http.post("/webhooks/ops", data=do)).status_code == 303
        assert app.webhooks.get("ops").enabled == enabled
        assert is_inert((await http.get("/webhooks")).text)
    assert (await http.post("/webhooks/ops", data={"do": "rotate", "secret": "NEWER"})).status_code == 303
    assert app.webhooks.get("ops").secrets == ("NEWER", "OPS_HOOK")
    assert 'name="confirmed"' in (await http.post("/webhooks/ops", data={"do": "remove"})).text
    assert (await http.post("/webhooks/ops", data={"do": "remove", "confirmed": "yes"})).status_code == 303
    assert app.webhooks.list() == []


XSS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{7*7}}${7*7}#{7*7}<%= 7*7 %>",
    "<!--<script>",
    "\u202e<b>turned</b>\u2066",
    "<iframe srcdoc='<script>alert(1)</script>'>",
]


def markup_of(page: str) -> tuple[Counter[str], set[str]]:
    """The number of each element of a page, and every attribute that could run code or lead elsewhere."""
    tags: Counter[str] = Counter()
    doubtful: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags[tag] += 1
            for name, value in attrs:
                if name.startswith("on") or (value or "").lower().lstrip().startswith(("javascript:", "data:")):
                    doubtful.add(f"{tag} {name}={value}")

    Reader().feed(page)
    return tags, doubtful


@pytest.mark.req("SC-15", "JF-16")
@pytest.mark.parametrize("text", XSS)
async def test_hostile_text_on_webhook_pages_is_not_markup(app: App, http: httpx2.AsyncClient, text: str) -> None:
    """Hostile text in every field of a webhook and its deliveries, written by the operator, the receiver and the
    producer. Each page must have the same elements as with harmless text."""

    def furnish(name: str, words: str) -> None:
        url = f"https://hooks.example/{quote(words)}"
        made = app.webhooks.add(name, url, secrets="OPS_HOOK", kind=words.strip("\u202e\u2066")[:100])
        job = app.enqueue(DELIVER, {"webhook": name, "type": "note", "data": {"text": words}})
        fields = {"message": f"msg_{name}", "type": words[:100], "attempt": 1, "status": 500, "error_code": "refused"}
        entry = WebhookDelivery(
            new_id(),
            "default",
            made.id,
            job_id=job.id,
            excerpt=words,
            duration_ms=5,
            **fields,  # type: ignore[arg-type]
        )
        assert session_of(app).run(session_of(app).store.webhooks.note_delivery(entry, "default"))
        with session_of(app).serving("default", f"by {words}".replace("\u202e", "").replace("\u2066", "")[:100]):
            app.webhooks.disable(name, reason=words)

    await asyncio.to_thread(furnish, "plain", "harmless words")
    before = markup_of((await http.get("/webhooks")).text)
    await asyncio.to_thread(app.webhooks.remove, "plain")
    pages = []
    for name, words in (("plain", "harmless words"), ("hostile", text)):
        await asyncio.to_thread(furnish, name, words)
        shown = [await http.get(f"/webhooks/{name}{more}") for more in ("", "?failed=1", f"?before={new_id()}")]
        assert [each.status_code for each in shown] == [200, 200, 200]
        assert "default-src 'none'" in shown[0].headers["content-security-policy"]
        assert words.split()[0][:20] in html.unescape(shown[0].text), "it is shown as text"
        pages.append([markup_of(each.text) for each in shown])
        if name == "plain":
            await asyncio.to_thread(app.webhooks.remove, name)
    assert pages[0] == pages[1]
    assert markup_of((await http.get("/webhooks")).text) == before


async def test_user_of_every_tenant_names_the_tenant_of_an_action(app: App) -> None:
    declare(app)
    for tenant in ("acme", "globex"):
        with app.tenant(tenant):
            app.schedules.add("same", "@daily", kind="part", payload={"n": 1})
    async with client_of(app, role="admin", tenant="*") as every:
        assert (await every.post("/schedules/same?tenant=globex", data={"do": "pause"})).status_code == 303
        assert "/schedules?tenant=acme" in (await every.get("/schedules")).text
    async with client_of(app, role="admin", tenant="acme") as acme:
        assert (await acme.post("/schedules/same?tenant=globex", data={"do": "run"})).status_code == 303
    states = {(row.tenant, row.state) for row in session_of(app).run(session_of(app).store.schedules.list("*"))}
    assert states == {("acme", "active"), ("globex", "paused")}
    every_job = session_of(app).run(session_of(app).store.jobs.list(JobFilter(tenant="*")))
    assert [(job.tenant, job.enqueued_by) for job in every_job] == [("acme", "schedule same")]


@pytest.mark.req("DP-26")
async def test_dead_letter_is_redriven_later_and_waiting_payload_is_replaced(
    app: App, http: httpx2.AsyncClient, scene: Scene
) -> None:
    dead = f"/jobs/{scene.dead}"
    wrong = await http.post(f"{dead}/redrive", data={"delay": "soon"})
    assert (wrong.status_code, the(app.jobs.get(scene.dead)).state) == (303, State.DEAD_LETTER)
    assert 'name="delay"' in (await http.get(dead)).text
    assert (await http.post(f"{dead}/redrive", data={"delay": "2h", "reason": "at noon"})).status_code == 303
    job = the(app.jobs.get(scene.dead))
    assert job.state is State.QUEUED
    assert the(job.due_at) > the(job.updated_at)

    waiting = app.enqueue("plain", {"n": 1}, delay=3600)
    page = f"/jobs/{waiting.id}"
    assert "Edit payload" not in (await http.get(page)).text
    assert (await http.post(f"{page}/edit", data={"payload": '{"n": 2}', "reason": "typo"})).status_code == 303
    assert waiting.get().payload == {"n": 1}, "the rule of its kind does not allow it"
    app.payload_rules.set("plain", replaceable=True)
    assert "Edit payload" in (await http.get(page)).text
    assert "Replace the payload" in (await http.get(f"{page}/edit")).text
    for bad in ({"payload": "{", "reason": "typo"}, {"payload": '{"n": 2}'}):
        assert (await http.post(f"{page}/edit", data=bad)).status_code == 422
    assert (await http.post(f"{page}/edit", data={"payload": '{"n": 2}', "reason": "typo"})).status_code == 303
    assert waiting.get().payload == {"n": 2}


@pytest.mark.req("CX-22", "SC-23")
async def test_external_reference_is_set_and_searched(app: App, http: httpx2.AsyncClient, scene: Scene) -> None:
    (job, *_) = await asyncio.to_thread(app.jobs.list, state="dead_letter")
    assert (await http.post(f"/jobs/{job.id}/external-ref", data={"external_ref": HOSTILE[:200]})).status_code == 303
    page = (await http.get(f"/jobs/{job.id}")).text
    assert "Worker" in page
    assert "Queued" in page
    assert is_inert(page)
    await http.post(f"/jobs/{job.id}/external-ref", data={"external_ref": "crm-1"})
    assert the(app.jobs.get(job.id)).external_ref == "crm-1"
    found = await http.get("/jobs", params={"q": "external_ref:crm-1"})
    assert (job.id in found.text, found.status_code) == (True, 200)
    await http.post(f"/jobs/{job.id}/external-ref", data={"external_ref": ""})
    assert the(app.jobs.get(job.id)).external_ref is None


@pytest.mark.req("DP-26", "SC-20")
async def test_job_page_shows_the_payload_that_an_attempt_ran_with(app: App, http: httpx2.AsyncClient) -> None:
    app.payload_rules.set("snoozed", replaceable=True)

    @app.job
    def snoozed(ctx: SyncContext, to: str) -> None:
        ctx.snooze(3600)

    job = snoozed.enqueue("the old one")
    await asyncio.to_thread(work_off, app)
    page = f"/jobs/{job.id}"
    assert "replaced since" not in (await http.get(page)).text
    app.jobs.replace_payload(job.id, {"to": "the new one"}, reason="typo")
    shown = (await http.get(page)).text
    assert "replaced since" in shown
    assert "the old one" in shown
    details = (await http.get(f"/api/v1/jobs/{job.id}")).json()
    assert [attempt["payload"] for attempt in details["attempts"]] == [{"to": "the old one"}]
    (attempt,) = (await http.get(f"/api/v1/jobs/{job.id}/attempts")).json()["items"]
    assert attempt["payload"] == {"to": "the old one"}
