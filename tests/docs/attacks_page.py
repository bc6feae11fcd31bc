"""docs/reference/attacks.md, generated from the list of attacks: `python -m tests.docs.attacks_page --write`.

The same statements work in both shells: psql and sqlite3 replace `:name` by a value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.attack import LATER, Attack, Table, attacks
from tests.attacks.on_agents import AGENTS, REGISTERED
from tests.attacks.on_approvals import APPROVALS, STEPS, UNDECIDED, VOTES
from tests.attacks.on_dead_letters import DEAD_LETTERS, OPERATIONS
from tests.attacks.on_facts import ARTIFACTS, FACTS, LEDGER
from tests.attacks.on_limits import LIMITED, LIMITS
from tests.attacks.on_pauses import PAUSED, PAUSES
from tests.attacks.on_payloads import PAYLOADS, RULED
from tests.attacks.on_retention import RETAINED, RETENTION
from tests.attacks.on_state import FENCE, INVARIANTS, ROWS
from tests.attacks.on_tenants import CAPPED, TENANTS
from tests.attacks.on_tokens import ISSUED, TOKENS
from tests.attacks.on_workflows import PLANNED, WORKFLOWS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "attacks.md"

_JOBS = (
    *("queued", "leased", "running", "succeeded", "returned", "dead", "waiting", "cancelled", "cleaned"),
    *("asking", "asked"),
)
_LEASES = ("lease", "holding", "other", "ended")
_FLOW = ("flow", "parent", "child")
_TOKENS = ("api_token", "session", "revoked")
NAMES = {
    name: f"00000000-0000-7000-8000-{number:012d}"
    for number, name in enumerate(
        (*_JOBS, *_LEASES, "approval", "decided", "sent", "unknown", *_FLOW, *_TOKENS), start=1
    )
}

_NOW = "(select now from present)"
_END = f"lease = null, settled_by = :lease, finished_at = {_NOW}"


def setup(store: str) -> list[str]:
    """A small database with a job in every state, by legal steps only."""
    lease = "insert into lease (id, tenant, name, holder, until, opened_at, renewed_at)"
    begin = f"update job_state set state = 'in_progress', lease = :lease, attempt = 1, started_at = {_NOW} where id ="
    return [
        *(f"{lease} values (:{name}, '*', 'worker', 'by hand', :later, {_NOW}, {_NOW})" for name in _LEASES),
        f"update lease set ended_at = {_NOW}, ended_why = 'closed' where id = :ended",
        *(f"insert into job (id, tenant, kind) values (:{name}, 'default', 'mail.send')" for name in _JOBS),
        "update job_state set state = 'leased', lease = :holding where id = :leased",
        *(f"{begin} :{name}" for name in ("running", "succeeded", "returned", "dead", "waiting", "asking", "asked")),
        f"update job_state set state = 'succeeded', {_END} where id in (:succeeded, :returned)",
        """insert into result (job_id, tenant, value) values (:returned, 'default', '{"paid":1}')""",
        f"update job_state set state = 'failed', error_code = 'x', error_message = 'y', {_END} where id = :dead",
        "update job_state set state = 'dead_letter' where id = :dead",
        "update job_state set state = 'retry_waiting', lease = null, settled_by = :lease, due_at = :later"
        " where id = :waiting",
        f"update job_state set state = 'cancelled', finished_at = {_NOW} where id in (:cancelled, :cleaned)",
        "update job_state set state = 'cleaned' where id = :cleaned",
        *(
            f"insert into artifact (job_id, tenant, attempt, name, ref, at) values (:{job}, 'default', 1, '{name}',"
            f" 'file:{name}', {_NOW})"
            for job in ("running", "succeeded")
            for name in ("log", "report")
        ),
        *(*REGISTERED, *LIMITED, *PAUSED, *RULED, *CAPPED, *RETAINED, *OPERATIONS, *ISSUED, *_people(store), *PLANNED),
    ]


# Steps are written by operations only: on SQLite they sign the clock, on PostgreSQL they are functions.
_OPERATE = {
    "sqlite": (
        f"update clock set floor = (select max(n) from job_state), now = {_NOW}",
        "update clock set now = null, floor = null",
    ),
    "postgres": tuple(
        "; ".join(f"alter table {table} {what} trigger refuse_unleased" for table in ("step", "checkpoint"))
        for what in ("disable", "enable")
    ),
}


def _people(store: str) -> list[str]:
    """An approval with one of two votes, a decided approval, a finished step, a waiting step, and an event."""
    approval = "insert into approval (id, tenant, job_id, n, name, summary, requester, content_hash, opened_at"
    vote = "insert into vote (approval_id, tenant, person, verdict, how, at) values"
    token = "insert into approval_token (hash, tenant, approval_id, issued_by, issued_at) values"
    step = "insert into step (job_id, n, tenant, name, kind, attempt, started_at"
    waits = "state = 'waiting_for_approval', lease = null, settled_by = :lease, approval_id ="
    return [
        f"update job_state set {waits} :approval where id = :asking",
        f"update job_state set {waits} :decided where id = :asked",
        f"{approval}, approvers, quorum, escalate_to, escalate_at, expires_in, expires_at)"
        f" values (:approval, 'default', :asking, 1, 'release', 'May it go out?', 'ada', 'h', {_NOW},"
        " :people, 2, :bosses, :soon, :hour, :soon)",
        f"{approval}) values (:decided, 'default', :asked, 1, 'release', 'May it go out?', 'ada', 'h', {_NOW})",
        _OPERATE[store][0],
        f"{step}) values (:asking, 1, 'default', 'release', 'approval', 1, {_NOW})",
        f"{step}, value, ended_at) values (:running, 1, 'default', 'charge', 'step', 1, {_NOW}, '1', {_NOW})",
        f"{step}) values (:waiting, 2, 'default', 'shipped', 'event', 1, {_NOW})",
        "insert into checkpoint (job_id, tenant, name, value, attempt, saved_at)"
        f" values (:running, 'default', 'p', '1', 1, {_NOW})",
        _OPERATE[store][1],
        f"{token} ('used', 'default', :approval, 'by hand', {_NOW})",
        f"{token} ('fresh', 'default', :approval, 'by hand', {_NOW})",
        f"{vote} (:approval, 'default', 'ada', 'approve', 'sql', {_NOW})",
        f"update approval_token set used_at = {_NOW} where hash = 'used'",
        f"{vote} (:decided, 'default', 'ada', 'approve', 'sql', {_NOW})",
        f"update approval set state = 'approved', decided_at = {_NOW} where id = :decided",
        "update job_state set state = 'queued', approval_id = null where id = :asked",
        "insert into app_event (id, tenant, name, data, key, sent_by, sent_at)"
        f" values (:sent, 'default', 'paid', '{{}}', 'k', 'by hand', {_NOW})",
    ]


# Values that the two shells write differently: in the sqlite3 shell, and in psql.
_SPELT: dict[str, tuple[object, object]] = {
    "later": (LATER["sqlite"], LATER["postgres"]),
    "soon": (4070908800000000, "2099-01-01"),
    "hour": (3600000000, "1 hour"),
    "people": ('["ada", "bob"]', '{"ada", "bob"}'),
    "bosses": ('["boss"]', '{"boss"}'),
    "roles": ('["viewer"]', '{"viewer"}'),
    "none": ("[]", "{}"),
}
SPELT = {store: {name: pair[n] for name, pair in _SPELT.items()} for n, store in enumerate(("sqlite", "postgres"))}


HEAD = """\
# Attacks to try by hand

SQL statements that attack the tables, and how the database refuses them. `tests/contract/test_attacks.py` runs each of
them on SQLite and on PostgreSQL, as the owner of the tables and as a superuser: each must be refused and change
nothing. This page is generated from the same list (`tests/docs/attacks_page.py`), so that you can repeat the attacks by
hand. Use a new database:

    holdfast migrate --url sqlite:///attacks.db      # then: sqlite3 attacks.db
    holdfast migrate --url postgresql://…/attacks    # then, as the owner: psql postgresql://…/attacks

The same statements work in both shells, since both replace `:name` by a value. Set the names, and on PostgreSQL the
schema and the tenants to act for. In psql:

```
{psql_names}
```

In the sqlite3 shell:

```
{sqlite_names}
```

Then create a job in every state. These steps are legal, so they succeed, and each adds a row to the ledger.

```sql
{setup}
```

Now try the attacks. The last two columns show a part of the error message. Run an attack of several statements as one
transaction: `begin`, the statements, `rollback`. A dash means that the store has no such statement.
"""

GROUPS: dict[str, tuple[str, Table]] = {
    "Facts": ("Facts of a job never change, and a job is not deleted while it has a state.", FACTS),
    "The ledger": ("Rows come from triggers only, and stay.", LEDGER),
    "Artifacts": ("Files of an attempt are added, never changed.", ARTIFACTS),
    "The state row": (
        "It is created and deleted with its job. (A separate test tries illegal transitions, for every ordered"
        " pair of states: `tests/contract/test_transition_matrix.py`.)",
        ROWS,
    ),
    "Invariants": ("Constraints between fields, by name.", INVARIANTS),
    "Leaving an approval": ("A job that waits for an approval continues only by its decision.", UNDECIDED),
    "Approvals": ("A request never changes, and a decision is final.", APPROVALS),
    "Votes and tokens": ("Each approver votes once; a token works once.", VOTES),
    "Steps and events": ("A finished step and a sent event never change.", STEPS),
    "The fence": ("A claim needs a live lease; the end of an attempt needs the lease that claimed it.", FENCE),
    "Agents": ("A registered agent gets only jobs of its kind, and none while it is disabled.", AGENTS),
    "Workflows": (
        "A job waits until its parents have finished; the plan never changes, and triggers maintain the rest.",
        WORKFLOWS,
    ),
    "Pausing": ("A pause holds until it is resumed, for claims and for enqueues.", PAUSES),
    "Limits and reservations": ("Counters cannot be changed, and past reservations are history.", LIMITS),
    "Payloads": ("Rules restrict payloads; a sealed payload can only change its key.", PAYLOADS),
    "API tokens and sessions": (
        "The rights of a token never change, a revocation is final, and a session has at most the rights of its token.",
        TOKENS,
    ),
    "Tenants": ("Limits of a tenant are enforced, and belong to the tenant.", TENANTS),
    "Retention and usage": (
        "Usage counters can be raised, but not reduced or deleted, and only a policy removes jobs.",
        RETENTION,
    ),
    "Dead letters and bulk operations": (
        "Counters match the jobs, and an operation runs as it was requested.",
        DEAD_LETTERS,
    ),
}


def render() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    psql = [f"\\set {name} '''{value}'''" for name, value in {**NAMES, **SPELT["postgres"]}.items()]
    sqlite = [
        f".parameter set :{name} {value}" if isinstance(value, int) else f".parameter set :{name} \"'{value}'\""
        for name, value in {**NAMES, **SPELT["sqlite"]}.items()
    ]
    yield HEAD.format(
        psql_names="\n".join(["set search_path = holdfast;", "set holdfast.tenant = '*';", *psql]),
        sqlite_names="\n".join([".parameter init", *sqlite]),
        setup="\n".join(_setup_lines()),
    ).rstrip()
    for title, (what, table) in GROUPS.items():
        yield f"\n## {title}\n\n{what}\n"
        yield "| attack | SQL | SQLite | PostgreSQL |\n|---|---|---|---|"
        yield from map(_row, attacks(table))


def _setup_lines() -> Iterator[str]:
    for sqlite, postgres in zip(setup("sqlite"), setup("postgres"), strict=True):
        yield f"{sqlite};" if sqlite == postgres else f"{sqlite};  -- in sqlite3\n{postgres};  -- in psql"


def _row(attack: Attack) -> str:
    stores = (attack.sqlite, attack.postgres)
    says = [_code((words,)) if sql else "–" for words, sql in zip(attack.says, stores, strict=True)]
    if all(stores) and attack.sqlite != attack.postgres:
        sql = f"SQLite: {_code(attack.sqlite)}<br>PostgreSQL: {_code(attack.postgres)}"
    else:
        sql = _code(attack.sqlite or attack.postgres)
    return f"| {attack.name} | {sql} | {says[0]} | {says[1]} |"


def _code(statements: tuple[str, ...]) -> str:
    return "<br>".join(f"`{statement.replace('|', chr(92) + '|')}`" for statement in statements)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())
