"""``holdfast rules`` and ``holdfast keys``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.options import document
from holdfast.cli.output import emit, line, moment, print_fields, say, table, write
from holdfast.cli.session import AnyTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.units import size_in_words
from holdfast.errors import InvalidSetting, NotFound
from holdfast.features.payloads.model import EACH_KIND, PayloadRule, RuleDraft
from holdfast.features.payloads.operations import PayloadRules, Rotated, rotate
from holdfast.steps.approvals import approval_rule
from holdfast.stores.session import Session
from holdfast.stores.vault import KeyRing, Vault, new_key

commands = Commands("Manage payload rules: allowed content, size and visibility.")

Kind = Annotated[str, typer.Argument(metavar="[KIND]", help="The job kind; without it, the rule for every kind.")]
DeclaredBy = Annotated[
    str, typer.Option("--declared-by", metavar="NAME", help="Delete the rule that this program declares in its code.")
]


@commands.add("list", "holdfast rules list --all-tenants")
def list_rules(session: AnyTenant) -> None:
    """List the payload rules of the tenant and of all tenants."""
    with session.connect() as client:
        rules = _rules(client).list()
    session.print_list(
        rules,
        {
            "kind": lambda rule: line(rule.kind),
            "tenant": lambda rule: line(rule.tenant),
            "says": lambda rule: line(_summary(rule)),
            "by": lambda rule: line(rule.declared_by or rule.set_by),
        },
        none="There are no rules for payloads.",
        keep=("kind", "tenant"),
    )


@commands.add(
    "show",
    "holdfast rules show import",
    "holdfast rules show import --all-tenants",
)
def show(session: AnyTenant, kind: Kind = EACH_KIND, declared_by: DeclaredBy = "") -> None:
    """Show one rule."""
    with session.connect() as client:
        rule = _get(client, kind, declared_by)
    _print(rule, session.as_json)


@commands.add(
    "set",
    "holdfast rules set import --signal-only --max-bytes 16KB",
    "holdfast rules set --tenant acme --signal-only --forbid iban --forbid password",
    "holdfast rules set patient.update --restricted --all-tenants",
    "holdfast rules set report --max-bytes 64KB --max-result-bytes 64KB --store",
)
def set_rule(
    session: AnyTenant,
    kind: Kind = EACH_KIND,
    signal_only: Annotated[
        bool, typer.Option("--signal-only", help="Refuse payloads with forbidden keys, at any depth.")
    ] = False,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid", metavar="KEY", help="Forbidden key, replaces the default list of --signal-only; repeatable."
        ),
    ] = None,
    restricted: Annotated[bool, typer.Option("--restricted", help="Never show or log the payload.")] = False,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="Maximum payload size: 4096, 64KB.")
    ] = None,
    max_result_bytes: Annotated[
        str | None, typer.Option("--max-result-bytes", metavar="SIZE", help="Maximum result size.")
    ] = None,
    store: Annotated[
        bool | None, typer.Option("--store/--no-store", help="Move larger values to the artifact store, or never.")
    ] = None,
    replaceable: Annotated[
        bool | None,
        typer.Option("--replaceable/--not-replaceable", help="Let operators replace the payload of a waiting job."),
    ] = None,
    requires_approval: Annotated[
        bool, typer.Option("--requires-approval", help="Its jobs wait for an approval before they run.")
    ] = False,
    approvers: Annotated[
        list[str] | None,
        typer.Option("--approver", metavar="WHO", help="Who may approve, with --requires-approval; repeatable."),
    ] = None,
    token_only: Annotated[
        bool | None,
        typer.Option("--token-only/--no-token-only", help="Only tokens decide the approvals of its jobs."),
    ] = None,
) -> None:
    """Set the payload rule for a kind (or every kind) in a tenant (or all tenants). New jobs are checked at once;
    running workers read it within about 5 seconds."""
    draft = RuleDraft.of(
        kind,
        signal_only=signal_only,
        forbidden=forbid or None,
        restricted=restricted,
        max_bytes=_size(max_bytes),
        max_result_bytes=_size(max_result_bytes),
        store=store,
        replaceable=replaceable,
        requires_approval=approval_rule({"approvers": approvers or []} if requires_approval or approvers else None),
        token_only=token_only,
    )
    with session.connect() as client:
        rule = client.run(client.store.payload_rules.set(draft, client.actor, client.tenant))
    _print(rule, session.as_json)


@commands.add("delete", "holdfast rules delete import")
def delete(session: AnyTenant, kind: Kind = EACH_KIND, declared_by: DeclaredBy = "") -> None:
    """Delete a rule. A rule declared in code returns when the next worker starts."""
    with session.connect() as client:
        _rules(client).remove(kind, declared_by=declared_by)
    session.answer({"kind": kind, "deleted": True}, "Deleted.")


@commands.add("check", """holdfast rules check import '{"row": 7}'""")
def check(
    session: OneTenant,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The job kind.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "-",
) -> None:
    """Check whether the rules allow a payload. Enqueues nothing."""
    value = document(payload)
    with session.connect() as client:
        refusal = _rules(client).check(kind, value)
    if refusal is not None:
        raise refusal
    session.answer({"kind": kind, "allowed": True}, "Allowed.")


def _rules(client: Session) -> PayloadRules:
    return PayloadRules(client, client.name)


def _get(client: Session, kind: str, declared_by: str) -> PayloadRule:
    wanted = (client.tenant, kind, declared_by)
    for rule in _rules(client).list():
        if (rule.tenant, rule.kind, rule.declared_by) == wanted:
            return rule
    raise NotFound(f"no payload rule for {kind} in tenant {client.tenant}", code="rule_not_found")


def _size(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _summary(rule: PayloadRule) -> str:
    parts = ["signal only"] if rule.signal_only else []
    parts += ["restricted"] if rule.classification == "restricted" else []
    parts += [] if rule.max_bytes is None else [f"payload up to {size_in_words(rule.max_bytes)}"]
    parts += [] if rule.max_result_bytes is None else [f"result up to {size_in_words(rule.max_result_bytes)}"]
    parts += [] if rule.store is None else ["larger is stored" if rule.store else "nothing is stored"]
    parts += [] if rule.replaceable is None else ["replaceable" if rule.replaceable else "not replaceable"]
    parts += [] if rule.requires_approval is None else ["needs approval"]
    parts += ["approvals by token only"] if rule.token_only else []
    parts += ["at most once"] if rule.at_most_once else []
    return ", ".join(parts)


def _print(rule: PayloadRule, as_json: bool) -> None:
    if as_json:
        emit(rule)
        return
    write("each kind" if rule.kind == EACH_KIND else rule.kind)
    print_fields(
        [
            ("tenant", "every tenant" if rule.tenant == "*" else rule.tenant),
            ("says", _summary(rule)),
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
        say("There are no keys: nothing is encrypted.")
    else:
        table(("key", ""), [[name, "current" if number == 0 else ""] for number, name in enumerate(names)])


@key_commands.add("generate", "holdfast keys generate --name 2027-01")
def generate(
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the key; default: the date.")
    ] = None,
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
    page: Annotated[
        int, typer.Option("--page", metavar="N", min=1, max=1000, help="Number of jobs to read at once.")
    ] = 100,
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
