"""``holdfast serve``: the HTTP API and the dashboard of an app, or of any database there is.

On a first SIGTERM or Ctrl-C requests that are under way are answered, within ten seconds, streams are ended, and the
process exits with 0; on a second one it leaves at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from holdfast import config
from holdfast.app import App
from holdfast.cli import logs, options, web
from holdfast.cli.loading import load_app
from holdfast.cli.output import emit, say
from holdfast.cli.serving import on_signals, run_to_end
from holdfast.cli.session import NAME, refuse_absent, scope, wait_ready
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import InvalidSetting

HOST, PORT = "127.0.0.1", 8000
LOOK = 2.0
"""Seconds to find out what is only worth a hint."""

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes one that is free.")]


def serve(
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Where the App is; without it, the database that --url names."),
    ] = None,
    url: options.Url = None,
    host: Host = HOST,
    port: Port = PORT,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="The HTTP API alone.")] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Nobody has to log in: only on loopback, for this machine's own user.")
    ] = False,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="PATH", help="What a proxy in front cuts off: /jobs.")
    ] = "",
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trust-proxy", metavar="ADDRESS", help="A proxy whose X-Forwarded-For and -Proto are believed; repeat it."
        ),
    ] = None,
    duties: Annotated[
        bool,
        typer.Option(
            "--duties/--no-duties",
            help="Fire schedules, reap lapsed leases, seal the ledger … as a worker does, or leave it to workers.",
        ),
    ] = True,
    body_timeout: Annotated[
        float,
        typer.Option(
            "--body-timeout",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="Time for a request to arrive; a large body has more, by its size.",
        ),
    ] = web.BODY_TIMEOUT,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log JSON lines; the address is a JSON document on stdout.")
    ] = False,
) -> None:
    """Serve the HTTP API and the dashboard.

    Whoever asks shows an API token (holdfast tokens issue). Jobs are run by workers; this runs none but those that a
    tick asks for. What workers do on the side it does as well, for every tenant, or for the one that is named.
    """
    trusted = web.check_trusted(trust_proxy or [])
    prefix = web.check_root_path(root_path)
    web.refuse_unsafe(host, local=no_auth)
    if no_auth and trusted:
        raise InvalidSetting(
            "behind a proxy everybody comes from this machine", code="conflicting_options", fix="Leave out --no-auth."
        )
    logs.set_up(log_level.value, as_json=options.logs_json(log_format, as_json))
    served = _app(app, url, tenant, schema)
    site = web.make_web(
        served,
        local=no_auth,
        dashboard=not no_dashboard,
        duties=_whose(tenant) if duties else None,
        body_timeout=body_timeout,
    )
    listening = web.listen(host, port)

    async def run() -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def asked() -> None:
            (hurry if stop.is_set() else stop).set()

        on_signals(asked, stop.set)
        try:
            async with web.serving(
                site, listening, root_path=prefix, trusted=trusted, hurry=hurry, body_timeout=body_timeout
            ) as ended:
                await _say_where(served, web.address_of(listening, prefix), no_auth, as_json)
                waiting = [asyncio.create_task(event.wait()) for event in (stop, ended)]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
                if not as_json:
                    say("Stopping; once more to leave at once.")
        finally:
            await served.aclose()

    run_to_end(run(), web.new_loop())


def _whose(tenant: str | None) -> str:
    return EVERY_TENANT if tenant is None else scope(tenant)


def _app(name: str | None, url: str | None, tenant: str | None, schema: str) -> App:
    if name is not None:
        if tenant is not None or schema != options.SCHEMA:
            raise InvalidSetting(f"{name} names its own tenant and schema", code="conflicting_options")
        found = load_app(name, url)
        if not found.store.embedded:
            wait_ready(found.store)
        return found
    found = App(config.database_url(url), tenant=scope(tenant), name=NAME, schema=schema)
    refuse_absent(found.store)
    wait_ready(found.store)
    return found


async def _say_where(app: App, address: str, no_auth: bool, as_json: bool) -> None:
    if as_json:
        emit({"address": address})
        return
    say(f"Serving at {address}")
    if no_auth:
        say("Nobody has to log in: whoever is at this machine may do everything.")
        return
    with contextlib.suppress(Exception):  # a role that may not look; whoever comes will tell
        async with asyncio.timeout(LOOK):
            found = await app.client.arun(app.client.verbs.tokens("*", limit=1))
        if not found:
            say("No token has been issued yet: holdfast tokens issue NAME --role admin")
