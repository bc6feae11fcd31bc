"""Query plans of PostgreSQL: the plan of a statement (EXPLAIN ANALYZE), and the rows read by a flow (counters)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from holdfast.stores.flow import Flow, Rows, Statement, drive_steps
from holdfast.stores.postgres.store import run_on

_PARAMETER = re.compile(r"%\((\w+)\)s")
_BIG = (
    *("job", "job_state", "job_tag", "event", "lease", "step", "app_event", "approval"),
    *("dead_letter", "dead_letter_group"),
)

Connection = psycopg.Connection[Any]


def _without_partition(name: str) -> str:
    """The name of a ledger partition, or of one of its indexes, without the partition's suffix."""
    return re.sub(r"^event_(rest|\d{8}_\d{6})(?=_|$)", "event", name)


def _of_registry(node: dict[str, Any]) -> bool:
    """The registry of kinds has a few rows, which are on one page."""
    return node.get("Relation Name") == "registered_kind"


def _empty_partition(node: dict[str, Any]) -> bool:
    """Reading an empty table is as cheap as reading its index."""
    name = node.get("Relation Name", "")
    return _without_partition(name) != name and not node["Actual Rows"] and not node.get("Rows Removed by Filter")


def _sorts_few(node: dict[str, Any]) -> bool:
    """A sort of the events of one job, from its partition, or of the votes of one approval: a few rows, however many
    jobs there are."""
    inner = {_without_partition(each["Relation Name"]) for each in _nodes(node) if "Relation Name" in each}
    return node["Node Type"] == "Sort" and inner in ({"event"}, {"vote"})


@dataclass(frozen=True)
class Plan:
    text: str
    nodes: tuple[dict[str, Any], ...]

    @property
    def indexes(self) -> set[str]:
        return {_without_partition(node["Index Name"]) for node in self.nodes if "Index Name" in node}

    @property
    def kinds(self) -> set[str]:
        ignored = (_empty_partition, _sorts_few, _of_registry)
        return {node["Node Type"] for node in self.nodes if not any(ignore(node) for ignore in ignored)}

    @property
    def rows_read(self) -> int:
        """Rows read by scans: those returned and those filtered out."""
        scans = [node for node in self.nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
        scans = [node for node in scans if not _of_registry(node)]
        removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        per_loop = [node["Actual Rows"] + sum(node.get(name, 0) for name in removed) for node in scans]
        read: float = sum(node["Actual Loops"] * rows for node, rows in zip(scans, per_loop, strict=True))
        return round(read)


def explained(connection: Connection, flow: Flow[Any]) -> Plan:
    """The plan of the flow's last statement, as a prepared statement; the statements before only run."""
    plan = Plan("", ())

    def execute(statement: Statement) -> Rows:
        nonlocal plan
        if isinstance(statement.params, dict):  # the others bind the tenant
            plan = _explain(connection, statement.sql, statement.params)
        return connection.execute(statement.sql, statement.params).fetchall()

    with connection.transaction(force_rollback=True):
        drive_steps(flow.start(), execute)
    return plan


def _explain(connection: Connection, query: str, params: dict[str, Any]) -> Plan:
    names = list(dict.fromkeys(_PARAMETER.findall(query)))
    text = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", query).replace("%%", "%")
    connection.execute("deallocate all")
    connection.execute(f"prepare explained as {text}".encode())
    values = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
    call = sql.SQL("explain (analyze, format json) execute explained({})").format(values)
    row = connection.execute(call).fetchone()
    assert row is not None
    return Plan(json.dumps(row[0], indent=1), tuple(_nodes(row[0][0]["Plan"])))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


@dataclass(frozen=True)
class Usage:
    """Rows read by sequential scans of the big tables, and entries read by index."""

    answer: Any
    scanned: dict[str, int]
    by_index: dict[str, int]


def measured(connection: Connection, flow: Flow[Any]) -> Usage:
    """Run the flow, roll it back, and count what this connection has read.

    It counts what the server has not yet added to the shared statistics: those also include reads of the server itself,
    such as summarizing a new part of the ledger at any time.
    """
    connection.execute("set max_parallel_workers = 0")  # the plans stay, but no other process reads
    with connection.transaction(force_rollback=True):
        tables, indexes = _counters(connection)
        answer = run_on(connection, flow)
        tables_after, indexes_after = _counters(connection)
    return Usage(answer, _increase(tables, tables_after), _increase(indexes, indexes_after))


def disable_autovacuum(connection: Connection) -> None:
    """Turn autovacuum off, so that the server does not analyse a table in the middle of a test."""
    connection.execute("""
        do $$ declare
            it regclass;
        begin
            for it in select oid from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r' loop
                execute format('alter table %s set (autovacuum_enabled = off)', it);
            end loop;
        end $$
    """)


def _counters(connection: Connection) -> tuple[dict[str, int], dict[str, int]]:
    # An index scan that finds nothing counts as one.
    rows = connection.execute(
        "select relkind = 'i', relname, pg_stat_get_xact_tuples_returned(oid),"
        " pg_stat_get_xact_numscans(oid) from pg_class"
        " where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'i')"
    ).fetchall()
    tables, indexes = Counter[str](), Counter[str]()
    for is_index, name, returned, scans in rows:
        if is_index:
            indexes[_without_partition(name)] += returned + scans
        elif _without_partition(name) in _BIG:
            tables[_without_partition(name)] += returned
    return tables, indexes


def _increase(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - count for name, count in before.items() if after[name] > count}
