"""Names of SQLite objects: tests write `select * from job` for both databases; on SQLite it is `holdfast_job`."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from holdfast.features import FEATURES
from holdfast.stores.sqlite.migrations import plan_with

PREFIX = "holdfast_"
_PLAN = plan_with(FEATURES)
_CREATE = re.compile(rf"CREATE\s+(?:UNIQUE\s+)?(?:TABLE|VIEW|INDEX|TRIGGER)\s+{PREFIX}(\w+)")
NAMES = frozenset(name for script in (*_PLAN.migrations, _PLAN.code) for name in _CREATE.findall(script.sql))

_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|\s+|[a-z_]\w*|.", re.IGNORECASE | re.DOTALL)
_BEFORE_NAME = {"from", "join", "into", "update", "table", "view", "index", "trigger", "exists", "by", "on", "analyze"}
_ENDS_LIST = {"where", "group", "order", "limit", "set", "values", "returning", "union", "select", "on"}
# `is distinct from column`, `order by column`, `join t on column`
_OTHER_USES = {("distinct", "from"), ("order", "by"), ("group", "by")}


@lru_cache(maxsize=4096)
def on_sqlite(sql: str) -> str:
    """The statement with the prefix before each name of Holdfast: where a name is expected, and before its columns."""
    found = [match.group() for match in _TOKEN.finditer(re.sub(r"(?i)\bupdate or (\w+) ", r"update or \1 table ", sql))]
    places = [place for place, text in enumerate(found) if not text.isspace() and not text.startswith("--")]
    words = ["", "", *(found[place].lower() for place in places), ""]
    local = {name for name, word in pairwise(words) if word == "as"}  # common table expressions
    listing = [False]  # for each open parenthesis: between FROM and the end of its list of tables
    for place, at in zip(places, range(2, len(words)), strict=False):
        first, before, word, after = words[at - 2 : at + 2]
        if word == "(":
            listing.append(False)
        elif word == ")" and len(listing) > 1:
            listing.pop()
        else:
            listing[-1] = word in ("from", "join") or (listing[-1] and word not in _ENDS_LIST)
        expected = (before in _BEFORE_NAME and (first, before) not in _OTHER_USES) or (before == "," and listing[-1])
        expected = expected or first == "table_info"
        if (expected or after == ".") and word in NAMES - local and before != ".":
            found[place] = PREFIX + found[place]
    return re.sub(r"(?i)\b(update or \w+) table ", r"\1 ", "".join(found))
