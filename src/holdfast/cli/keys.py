"""``holdfast keys list | generate | rotate``: the keys that payloads, results, steps and checkpoints are under."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.output import emit, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.errors import InvalidSetting
from holdfast.features.payloads.operations import Rotated, rotate
from holdfast.stores.vault import KeyRing, Vault, new_key

commands = Commands("The keys that what jobs bring and keep is sealed with.")


@commands.add("list", "holdfast keys list")
def list_keys(as_json: options.Json = False) -> None:
    """List the names of the keys in HOLDFAST_KEYS; the first seals, all of them open."""
    text = config.key_text()
    names = () if text is None else KeyRing.of(text).names
    if as_json:
        emit([{"name": name, "current": number == 0} for number, name in enumerate(names)])
    elif not names:
        say("There are no keys: nothing is sealed.")
    else:
        table(("key", ""), [[name, "current" if number == 0 else ""] for number, name in enumerate(names)])


@commands.add("generate", "holdfast keys generate --name 2027-01")
def generate(
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name; else the date.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print a new key, in the form that HOLDFAST_KEYS takes. It is kept nowhere else."""
    entry = f"{name or datetime.now(UTC).strftime('%Y-%m-%d')}:{new_key()}"
    KeyRing.of(entry)
    if as_json:
        emit({"key": entry})
        return
    write(entry)
    say("Put it first in HOLDFAST_KEYS, before the old ones; then: holdfast keys rotate")


@commands.add("rotate", "holdfast keys rotate --all-tenants")
def rotate_keys(
    session: AnyTenant,
    page: Annotated[int, typer.Option("--page", metavar="N", min=1, max=1000, help="Jobs read at a time.")] = 100,
) -> None:
    """Seal with the current key what is sealed with others. It can be stopped at any time and begun again."""
    vault = Vault.of(config.artifact_place(config.database_url(session.url)), config.key_text())
    if vault.keys is None:
        raise InvalidSetting("there are no keys here", code="no_keys", fix="Set HOLDFAST_KEYS, the new key first.")

    def tell(so_far: Rotated) -> None:
        if not session.as_json:
            say(f"{so_far.resealed:,} sealed anew …")

    with session.connect() as client:
        done = rotate(client, vault, tell, page)
    session.answer(done, f"{done.resealed:,} sealed with {vault.keys.current}.")
    if done.unread:
        say(f"{done.unread:,} could not be opened: their key is not in HOLDFAST_KEYS, or they were changed.")
        raise typer.Exit(1)
