"""``holdfast payload-rules`` and ``holdfast keys``."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, say, table, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.errors import InvalidSetting
from holdfast.features.payloads.model import EACH_KIND, Effective, PayloadRule
from holdfast.features.payloads.operations import PayloadRules, Rotated, rotate
from holdfast.stores.vault import KeyRing, Vault, new_key

commands = Commands("Manage payload rules: allowed content, size and visibility.")


@derive(commands, "list", AnyTenant, PayloadRules.list, "holdfast payload-rules list --all-tenants")
def list_rules(session: AnyTenant, result: list[PayloadRule]) -> None:
    session.print_list(
        result,
        {
            "kind": lambda rule: line(rule.kind),
            "tenant": lambda rule: line(rule.tenant),
            "says": lambda rule: line(rule.says),
            "by": lambda rule: line(rule.declared_by or rule.set_by),
        },
        none="No payload rules.",
        keep=("kind", "tenant"),
    )


@derive(
    commands,
    "show",
    AnyTenant,
    PayloadRules.get,
    "holdfast payload-rules show import",
    "holdfast payload-rules show import --all-tenants",
)
def show(session: AnyTenant, result: PayloadRule) -> None:
    _print(result, session.as_json)


@derive(
    commands,
    "set",
    AnyTenant,
    PayloadRules.set,
    "holdfast payload-rules set import --signal-only --max-bytes 16KB",
    "holdfast payload-rules set --tenant acme --signal-only --forbid iban --forbid password",
    "holdfast payload-rules set patient.update --restricted --all-tenants",
    "holdfast payload-rules set report --max-bytes 64KB --store",
)
def set_rule(
    session: AnyTenant,
    inputs: dict[str, Any],
    requires_approval: Annotated[bool, Help("Its jobs wait for an approval before they run.")] = False,
    approvers: Annotated[
        list[str] | None, Help("Who may approve, with --requires-approval; repeatable.", "WHO", option="--approver")
    ] = None,
) -> None:
    """Set the payload rule for a kind (or every kind) in a tenant (or all tenants). New jobs are checked at once;
    running workers read it within about 5 seconds."""
    if requires_approval or approvers:
        inputs["requires_approval"] = {"approvers": approvers or []}
    with session.namespace(PayloadRules) as rules:
        _print(rules.set(**inputs), session.as_json)


@derive(commands, "remove", AnyTenant, PayloadRules.remove, "holdfast payload-rules remove import")
def remove_rule(session: AnyTenant, result: None, kind: str) -> None:
    session.answer({"kind": kind, "removed": True}, "Removed.")


@derive(commands, "effective", OneTenant, PayloadRules.effective, "holdfast payload-rules effective import")
def show_effective(session: OneTenant, result: Effective, kind: str) -> None:
    if session.as_json:
        emit(result)
        return
    write(kind)
    print_fields((field.name.replace("_", " "), _words(getattr(result, field.name))) for field in fields(result))


def _words(value: Any) -> str | None:
    """A setting in words; None if it has no effect."""
    if value is True:
        return "yes"
    return (", ".join(sorted(value)) if isinstance(value, frozenset) else str(value)) if value else None


@derive(
    commands,
    "check",
    OneTenant,
    PayloadRules.check,
    """holdfast payload-rules check import '{"row": 7}'""",
    without=("payload",),
)
def check(
    session: OneTenant,
    inputs: dict[str, Any],
    kind: str,
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="JSON, @file, or - for stdin.")] = "-",
) -> None:
    """Check whether the rules allow a payload. Enqueues nothing."""
    value = options.document(payload)
    with session.namespace(PayloadRules) as rules:
        refusal = rules.check(payload=value, **inputs)
    if refusal is not None:
        raise refusal
    session.answer({"kind": kind, "allowed": True}, "Allowed.")


def _print(rule: PayloadRule, as_json: bool) -> None:
    if as_json:
        emit(rule)
        return
    write("each kind" if rule.kind == EACH_KIND else rule.kind)
    print_fields(
        [
            ("tenant", "every tenant" if rule.tenant == "*" else rule.tenant),
            ("says", rule.says),
            ("forbidden", ", ".join(rule.forbidden) if rule.signal_only else None),
            ("declared by", rule.declared_by or None),
            ("set", f"{moment(rule.updated_at)} by {rule.set_by}"),
        ]
    )


key_commands = Commands("Manage the encryption keys for payloads and results.")


@key_commands.add("list", "holdfast keys list")
def list_keys(as_json: options.Json = False) -> None:
    """List the names of the keys in HOLDFAST_KEYS. The first one encrypts; all of them decrypt."""
    text = config.key_text()
    names = () if text is None else KeyRing.of(text).names
    if as_json:
        emit([{"name": name, "current": number == 0} for number, name in enumerate(names)])
    elif not names:
        say("No keys: nothing is encrypted.")
    else:
        table(("key", ""), [[name, "current" if number == 0 else ""] for number, name in enumerate(names)])


@key_commands.add("generate", "holdfast keys generate --name 2027-01")
def generate(
    name: Annotated[str | None, Help("Name of the key; default: the date.", "NAME")] = None,
    as_json: options.Json = False,
) -> None:
    """Print a new key in the form that HOLDFAST_KEYS takes. The key is not stored."""
    entry = f"{name or datetime.now(UTC).strftime('%Y-%m-%d')}:{new_key()}"
    KeyRing.of(entry)
    if as_json:
        emit({"key": entry})
        return
    write(entry)
    say("Put it first in HOLDFAST_KEYS, before the old ones; then: holdfast keys rotate")


@key_commands.add("rotate", "holdfast keys rotate --all-tenants")
def rotate_keys(
    session: AnyTenant,
    page: Annotated[int, Help("Number of jobs to read at once.", "N", low=1, high=1000)] = 100,
) -> None:
    """Re-encrypt with the current key everything sealed with older ones. You can stop and restart it at any time."""
    vault = Vault.of(config.artifact_location(config.database_url(session.url)), config.key_text())
    if vault.keys is None:
        raise InvalidSetting(
            "no encryption keys are set", code="no_keys", fix="Set HOLDFAST_KEYS with the new key first."
        )

    def report(so_far: Rotated) -> None:
        if not session.as_json:
            say(f"{so_far.resealed:,} re-encrypted …")

    with session.connect() as client:
        done = rotate(client, vault, report, page)
    session.answer(done, f"{done.resealed:,} sealed with {vault.keys.current}.")
    if done.unread:
        say(f"{done.unread:,} could not be opened: their key is not in HOLDFAST_KEYS, or they were changed.")
        raise typer.Exit(1)
