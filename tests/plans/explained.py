"""Plans as PostgreSQL tells them: what a statement reads (EXPLAIN ANALYZE), and what a function has read (counters)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from holdfast.stores.flow import Flow, Rows, Statement, drive
from holdfast.stores.postgres.store import run_on

_PARAMETER = re.compile(r"%\((\w+)\)s")
_BIG = (
    "job",
    "job_state",
    "job_tag",
    "event",
    "lease",
    "step",
    "app_event",
    "approval",
    "dead_letter",
    "dead_letter_group",
)

Connection = psycopg.Connection[Any]


def _whole(name: str) -> str:
    """Of a partition of the ledger, or of one of its indexes: the name that it has without the partition's own part."""
    return re.sub(r"^event_(rest|\d{8}_\d{6})(?=_|$)", "event", name)


def _empty_partition(node: dict[str, Any]) -> bool:
    """To read an empty table is as cheap as to look into its index."""
    name = node.get("Relation Name", "")
    return _whole(name) != name and not node["Actual Rows"] and not node.get("Rows Removed by Filter")


def _sorts_one_ledger(node: dict[str, Any]) -> bool:
    """The events of one job, from the partition it is in: a few rows, however many jobs there are."""
    inner = [each["Relation Name"] for each in _nodes(node) if "Relation Name" in each]
    return node["Node Type"] == "Sort" and bool(inner) and all(_whole(name) == "event" for name in inner)


@dataclass(frozen=True)
class Plan:
    text: str
    nodes: tuple[dict[str, Any], ...]

    @property
    def indexes(self) -> set[str]:
        return {_whole(node["Index Name"]) for node in self.nodes if "Index Name" in node}

    @property
    def kinds(self) -> set[str]:
        return {node["Node Type"] for node in self.nodes if not _empty_partition(node) and not _sorts_one_ledger(node)}

    @property
    def rows_read(self) -> int:
        """By the scans: what they handed on and what they read in vain."""
        scans = [node for node in self.nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
        removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        per_loop = [node["Actual Rows"] + sum(node.get(name, 0) for name in removed) for node in scans]
        read: float = sum(node["Actual Loops"] * rows for node, rows in zip(scans, per_loop, strict=True))
        return round(read)


def explained(connection: Connection, flow: Flow[Any]) -> Plan:
    """The plan of the flow's last statement, as a prepared statement would be run; the ones before just run."""
    plan = Plan("", ())

    def execute(statement: Statement) -> Rows:
        nonlocal plan
        if isinstance(statement.params, dict):  # the others bind the tenant
            plan = _explain(connection, statement.sql, statement.params)
        return connection.execute(statement.sql, statement.params).fetchall()

    with connection.transaction(force_rollback=True):
        drive(flow.start(), execute)
    return plan


def _explain(connection: Connection, query: str, params: dict[str, Any]) -> Plan:
    names = list(dict.fromkeys(_PARAMETER.findall(query)))
    text = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", query).replace("%%", "%")
    connection.execute("deallocate all")
    connection.execute(f"prepare looked_at as {text}".encode())
    values = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
    call = sql.SQL("explain (analyze, format json) execute looked_at({})").format(values)
    row = connection.execute(call).fetchone()
    assert row is not None
    return Plan(json.dumps(row[0], indent=1), tuple(_nodes(row[0][0]["Plan"])))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


@dataclass(frozen=True)
class Usage:
    """What was read: rows by sequential scans of the big tables, and entries by index."""

    answer: Any
    scanned: dict[str, int]
    by_index: dict[str, int]


def used(connection: Connection, flow: Flow[Any]) -> Usage:
    """Run the flow for real, take it back, and see what this connection has read meanwhile.

    Counted is what the server has not added to everybody's figures yet: in those stands also what it reads by
    itself, such as a new part of the ledger for the summary of its transactions, whenever it comes to it.
    """
    connection.execute("set max_parallel_workers = 0")  # plans stay, but nobody else reads for us
    with connection.transaction(force_rollback=True):
        tables, indexes = _counters(connection)
        answer = run_on(connection, flow)
        tables_after, indexes_after = _counters(connection)
    return Usage(answer, _risen(tables, tables_after), _risen(indexes, indexes_after))


def leave_alone(connection: Connection) -> None:
    """Statistics stay as they are: the server does not come to analyse a table in the midst of a test."""
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
    # A scan of an index that finds nothing counts too, as one.
    rows = connection.execute(
        "select relkind = 'i', relname, pg_stat_get_xact_tuples_returned(oid),"
        " pg_stat_get_xact_numscans(oid) from pg_class"
        " where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'i')",
    ).fetchall()
    tables, indexes = Counter[str](), Counter[str]()
    for is_index, name, returned, scans in rows:
        if is_index:
            indexes[_whole(name)] += returned + scans
        elif _whole(name) in _BIG:
            tables[_whole(name)] += returned
    return tables, indexes


def _risen(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - count for name, count in before.items() if after[name] > count}
