"""Releases that never were: plans with one migration more, to see how a database gets from one to the next.

Run as a program (`python -m tests.migration.plans URL SCRIPT`) it migrates the database by such a plan, so that a
test can kill it on the way.
"""

from __future__ import annotations

import sys
from contextlib import closing

from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import CODE, Plan, Script

MORE = Script("9999_more", "create table more (n integer not null);\ncreate index more_by_n on more (n);\n")


def plan_of(store: Store) -> Plan:
    found: Plan = vars(store)["_plan"]
    return found


def use(store: Store, plan: Plan) -> None:
    """Make the store believe that its release has this plan."""
    vars(store)["_plan"] = plan


def with_more(plan: Plan, more: Script = MORE) -> Plan:
    """The release after: one migration more, and other code."""
    code = plan.code.sql + "\ncreate view everything as select n from more;\n"
    # Code may be laid over itself, so it drops what it makes.
    return Plan((*plan.migrations, more), Script(CODE, "drop view if exists everything;\n" + code))


def main(url: str, script: str) -> None:
    with closing(open_store(url)) as store:
        use(store, with_more(plan_of(store), Script(MORE.name, script)))
        print(store.migrate())


if __name__ == "__main__":
    main(*sys.argv[1:])
