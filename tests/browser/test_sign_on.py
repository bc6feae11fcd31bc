"""Single sign-on in a browser: the cookies and the policy of the pages let a person in and out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from holdfast import App
from holdfast.outgoing import EgressPolicy
from holdfast.server.app import make_service
from holdfast.server.proxies import Roles
from holdfast.server.sessions import tokens_of
from holdfast.server.sign_on import Provider, SignOn, leave
from tests.browser.conftest import in_new_thread
from tests.support.http_server import serving
from tests.support.openid import CLIENT, CLIENT_SECRET, openid_provider

pytestmark = [pytest.mark.req("HF-20"), pytest.mark.slow]


def test_person_is_in_after_the_login_and_out_after_the_logout(browser: Browser, tmp_path: Path) -> None:
    with openid_provider() as provider:
        issuer = provider.issuer.replace("127.0.0.1", "localhost")  # another site than the service
        provider.issuer = issuer
        egress = EgressPolicy(ports=(urlsplit(issuer).port or 0,), allow=("127.0.0.0/8", "::1/128"))
        with closing(App(f"sqlite:///{tmp_path}/jobs.db", name="tests", egress=egress)) as app:
            in_new_thread(app.migrate)
            service = make_service(app, authenticate=tokens_of(app, remember=0))
            dashboard = service.router.routes[0].app  # type: ignore[attr-defined]
            with serving(service) as address:
                settings = SignOn(
                    issuer=issuer,
                    client_id=CLIENT,
                    client_secret=CLIENT_SECRET,
                    url=address,
                    roles=Roles.of("ops=viewer"),
                )
                dashboard.state.provider, dashboard.state.leave = Provider(settings, egress), leave
                provider.redirect_uri = f"{address}/login/callback"
                page = browser.new_page()
                page.goto(f"{address}/jobs")
                page.get_by_role("link", name="Log in with single sign-on").click()
                page.wait_for_url(f"{address}/jobs")
                expect(page.get_by_text("ada@example.com").first).to_be_attached()
                page.get_by_role("button", name="Log out").first.click()
                page.wait_for_url(f"{issuer}/logout**")
                page.goto(f"{address}/jobs")
                expect(page.get_by_role("link", name="Log in with single sign-on")).to_be_visible()
                page.close()
