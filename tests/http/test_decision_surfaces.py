"""Every surface that applies or shows a decision: the same rules and the same record on each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from typer.testing import CliRunner

from holdfast import App, Context, config
from holdfast.app.internals import session_of
from holdfast.cli.commands import app as command_line
from holdfast.errors import HoldfastError
from holdfast.features.tokens.model import scopes_of
from holdfast.remote import Client
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from tests.support.direct_sql import open_by_hand
from tests.support.http_server import serving
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-6", "CX-7", "CX-24")

FORM = {"type": "object", "properties": {"amount": {"type": "integer", "default": 3}}, "required": ["amount"]}
PEOPLE = ("ada", "bob", "cyd")


@dataclass
class Scene:
    app: App
    url: str
    origin: str

    def ask(self, **question: Any) -> str:
        """A job that asks. Returns the approval's id."""

        @self.app.job("pay")
        async def pay(ctx: Context) -> Any:
            return (await ctx.approval("payment", **({"summary": "Pay?", "approvers": PEOPLE} | question))).data

        pay.enqueue()
        work_off(self.app)
        (approval,) = self.app.approvals.list()
        return approval.id

    def http(self, person: str | None) -> httpx2.Client:
        headers = {"origin": self.origin} | ({} if person is None else {"authorization": f"Bearer {person}"})
        return httpx2.Client(base_url=self.origin, headers=headers)

    def command(self, *arguments: str) -> Any:
        return CliRunner().invoke(command_line, arguments, env={config.URL_VARIABLE: self.url, "COLUMNS": "300"})


@pytest.fixture
def scene(app: App, url: str) -> Iterator[Scene]:
    def authenticate(request: Request) -> Identity | None:
        person = request.headers.get("authorization", "").removeprefix("Bearer ")
        return Identity(person, "default", scopes_of(["admin"])) if person else None

    session_of(app).make_ready()
    with serving(make_service(app, authenticate=authenticate)) as origin:
        yield Scene(app, url, origin)


# --- surfaces that apply a decision: the state, or the code of the refusal ---

Apply = Callable[[Scene, str, str, str, Any], str]


def _python(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    options = {} if verdict == "deny" else {"data": data}
    try:
        return str(getattr(scene.app.approvals, verdict)(reference, by=person, **options))
    except HoldfastError as error:
        return error.code


def _python_async(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    async def decide() -> str:
        options = {} if verdict == "deny" else {"data": data}
        try:
            return str(await getattr(scene.app.approvals, f"a{verdict}")(reference, by=person, **options))
        except HoldfastError as error:
            return error.code
        finally:
            await session_of(scene.app).store.leave_loop()

    return asyncio.run(decide())


def _remote(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    client = Client(scene.origin, token=person)
    try:
        return str(getattr(client.approvals, verdict)(reference, data=data))
    except HoldfastError as error:
        return error.code
    finally:
        client.close()


def _http(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    body = {} if data is None else {"data": data}
    with scene.http(person) as http:
        answer = http.post(f"/api/v1/approvals/{reference}/{verdict}", json=body).json()
    return str(answer.get("code") or answer["state"])


def _http_token(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    body = {"verdict": verdict} | ({} if data is None else {"data": data})
    with scene.http(None) as http:
        answer = http.post(f"/api/v1/approvals/by-token/{reference}", json=body).json()
    return str(answer.get("code") or answer["approval"]["state"])


def _cli(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    by = () if reference.startswith("hfa_") else ("--by", person)
    values = () if data is None else ("--data", json.dumps(data))
    result = scene.command("approvals", verdict, reference, *by, *values, "--json")
    answer = json.loads(result.stdout or result.stderr)
    return str(answer["error"]["code"] if "error" in answer else answer["state"])


def _sql(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    by_hand = open_by_hand(scene.url)
    try:
        if not scene.url.startswith("postgres"):
            return _python(scene, reference, person, verdict, data)
        values = "" if verdict == "deny" or data is None else f", data => '{json.dumps(data)}'"
        call = f"select state, reason from {verdict}('{reference}', '{person}'{values}, for_tenant => 'default')"
        ((state, reason),) = by_hand.execute(call)
        return str(reason or state)
    finally:
        by_hand.close()


def _page(scene: Scene, path: str, person: str | None, verdict: str, data: Any) -> str:
    fields = {"verdict": verdict} | {f"f:{name}": str(value) for name, value in (data or {}).items()}
    with scene.http(person) as http:
        answer = http.post(path, data=fields)
    if answer.status_code in (200, 303):
        (approval,) = scene.app.approvals.list(state="all")
        return approval.state
    return "token_required" if "only a token decides it" in answer.text else f"{answer.status_code}: {answer.text}"


def _dashboard(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    return _page(scene, f"/approvals/{reference}", person, verdict, data)


def _link(scene: Scene, reference: str, person: str, verdict: str, data: Any) -> str:
    return _page(scene, f"/decide/{reference}", None, verdict, data)


BY_NAME: dict[str, Apply] = {
    "python": _python,
    "python async": _python_async,
    "remote": _remote,
    "http": _http,
    "cli": _cli,
    "sql": _sql,
    "dashboard": _dashboard,
}
BY_TOKEN: dict[str, Apply] = {
    "python": _python,
    "python async": _python_async,
    "remote": _remote,
    "http": _http_token,
    "cli": _cli,
    "link": _link,
}


@pytest.mark.every_case
@pytest.mark.parametrize("surface", BY_NAME)
def test_votes_count_for_the_same_values(scene: Scene, surface: str) -> None:
    vote, approval = BY_NAME[surface], scene.ask(form=FORM, quorum=2)
    assert vote(scene, approval, "ada", "approve", {"amount": 5}) == "open"
    assert vote(scene, approval, "bob", "approve", {"amount": 7}) == "open"
    assert scene.app.approvals.get(approval).approval.approvals == 1
    assert vote(scene, approval, "ada", "approve", {"amount": 7}) == "approved"
    votes = [(each.person, each.data["amount"]) for each in scene.app.approvals.get(approval).votes]
    assert votes == [("ada", 5), ("bob", 7), ("ada", 7)]
    work_off(scene.app)
    (job,) = scene.app.jobs.list(kind="pay")
    assert scene.app.jobs.handle(job.id).result(timeout=1) == {"amount": 7}


@pytest.mark.every_case
@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.parametrize("surface", BY_NAME)
def test_id_and_name_do_not_decide_where_a_token_is_required(scene: Scene, surface: str, verdict: str) -> None:
    approval = scene.ask(token_only=True)
    assert BY_NAME[surface](scene, approval, "ada", verdict, None) == "token_required"
    assert scene.app.approvals.get(approval).votes == []


@pytest.mark.every_case
@pytest.mark.parametrize("surface", BY_TOKEN)
def test_token_decides_where_one_is_required(scene: Scene, surface: str) -> None:
    approval = scene.ask(token_only=True)
    token = scene.app.approvals.issue_token(approval, person="ada")
    assert BY_TOKEN[surface](scene, token, "ada", "approve", None) == "approved"


@pytest.mark.every_case
@pytest.mark.parametrize("rule", ["kind", "every kind", "declared"])
def test_rule_requires_a_token(scene: Scene, rule: str) -> None:
    if rule == "declared":
        scene.app.payload_rules._declare("pay", {"token_only": True})
    else:
        result = scene.command("payload-rules", "set", *(["pay"] if rule == "kind" else []), "--token-only")
        assert result.exit_code == 0, result.output
    approval = scene.ask(expires_in="1h", on_expire="approve")
    assert _python(scene, approval, "ada", "approve", None) == "token_required"
    assert scene.app.approvals.get(approval).approval.on_expire == "deny"  # time does not approve either


# --- surfaces that show one ---

Show = Callable[[Scene, str, str], str]


def _read(scene: Scene, path: str) -> str:
    with scene.http("eve") as http:
        answer = http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def _run(scene: Scene, *arguments: str) -> str:
    result = scene.command(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def _remote_get(scene: Scene, approval: str, job: str) -> str:
    client = Client(scene.origin, token="eve")
    try:
        return repr(client.approvals.get(approval))
    finally:
        client.close()


SHOWS: dict[str, Show] = {
    "python": lambda scene, approval, job: repr(scene.app.approvals.get(approval)),
    "remote": _remote_get,
    "http": lambda scene, approval, job: _read(scene, f"/api/v1/approvals/{approval}"),
    "http job": lambda scene, approval, job: _read(scene, f"/api/v1/jobs/{job}"),
    "cli": lambda scene, approval, job: _run(scene, "approvals", "show", approval),
    "cli job": lambda scene, approval, job: _run(scene, "jobs", "show", job),
    "cli history": lambda scene, approval, job: _run(scene, "jobs", "history", job),
    "dashboard": lambda scene, approval, job: _read(scene, f"/approvals/{approval}"),
    "dashboard job": lambda scene, approval, job: _read(scene, f"/jobs/{job}"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("surface", [*SHOWS, "link"])
def test_each_vote_is_shown_with_its_values(scene: Scene, surface: str) -> None:
    approval = scene.ask(form=FORM, quorum=2, on_deny="resume")
    _python(scene, approval, "ada", "approve", {"amount": 512})
    job = scene.app.approvals.get(approval).job.id
    if surface == "link":
        token = scene.app.approvals.issue_token(approval, person="bob")
        shown = _read(scene, f"/decide/{token}")
        assert 'value="512"' in shown
    else:
        shown = SHOWS[surface](scene, approval, job)
    assert "ada" in shown
    assert "512" in shown
    scene.app.approvals.deny(approval, by="bob", comment="too much")
    if surface != "link":
        shown = SHOWS[surface](scene, approval, job)
        assert "ada" in shown
        assert "bob" in shown
        assert "too much" in shown
        assert "512" in shown
        assert "denied by ada" not in shown


def test_pages_are_filled_in_for_the_next_person(scene: Scene) -> None:
    approval = scene.ask(form=FORM, quorum=2)
    with scene.http("bob") as http:
        assert 'value="3"' in http.get(f"/approvals/{approval}").text
    assert "amount whole number yes 3" in " ".join(_run(scene, "approvals", "show", approval).split())
    _python(scene, approval, "ada", "approve", {"amount": 512})
    with scene.http("bob") as http:
        page = http.get(f"/approvals/{approval}").text
    assert 'value="512"' in page
    assert "Approve the same values to confirm them" in page


def test_page_of_an_approver_says_that_the_link_is_needed(scene: Scene) -> None:
    approval = scene.ask(token_only=True)
    with scene.http("ada") as http:
        page = http.get(f"/approvals/{approval}").text
    assert "only the link that was sent to you decides it" in page
    assert 'name="verdict"' not in page


def test_public_page_has_no_shortcuts_of_the_dashboard(scene: Scene) -> None:
    token = scene.app.approvals.issue_token(scene.ask(), person="ada")
    with scene.http(None) as http:
        page = http.get(f"/decide/{token}").text
    assert "Keyboard shortcuts" not in page
    assert "keys.js" not in page
