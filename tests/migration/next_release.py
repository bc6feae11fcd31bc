"""A made-up next release: the plan of this one with one more migration.

As a program (`python -m tests.migration.next_release URL SCRIPT`) it migrates a database by such a plan, so that a
test can kill it midway.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace

from holdfast.features.assembly import Store, open_store
from holdfast.stores.migrations import CODE, Plan, Script

MORE = Script("9999_more", "create table more (n integer not null);\ncreate index more_by_n on more (n);\n")


def plan_of(store: Store) -> Plan:
    result: Plan = vars(store)["_plan"]
    return result


def use(store: Store, plan: Plan) -> None:
    """Make the store use this plan as that of its release."""
    vars(store)["_plan"] = plan


def with_more(plan: Plan, more: Script = MORE) -> Plan:
    """The next release: one more migration, and changed code."""
    code = plan.code.sql + "\ncreate view everything as select n from more;\n"
    # Code may be installed again, so it drops what it creates.
    script = Script(CODE, "drop view if exists everything;\n" + code)
    return replace(plan, migrations=(*plan.migrations, more), code=script, downs=())


def main(url: str, script: str) -> None:
    with closing(open_store(url)) as store:
        use(store, with_more(plan_of(store), Script(MORE.name, script)))
        print(store.migrate())


if __name__ == "__main__":
    main(*sys.argv[1:])
