"""SQL for what jobs require of their workers (``engine/requirement.py``)."""

from __future__ import annotations

from typing import Final

from holdfast.engine.requirement import NO_CODE

# A row that was damaged by hand requires nothing that can be read.
_READABLE = "{table}executor < ' ' AND json_valid(substr({table}executor, 2))"
_PART = f"json_extract(CASE WHEN {_READABLE} THEN substr({{table}}executor, 2) END, '$[{{n}}]')"
VERSION: Final = _PART.format(table="", n=0)
CODE: Final = _PART.format(table="", n=1)
LABEL: Final = f"CASE WHEN executor < ' ' THEN {_PART.format(table='', n=2)} ELSE executor END"

_OF_LEASE = (
    "EXISTS (SELECT 1 FROM holdfast_lease l WHERE l.id = :lease AND "
    + " AND ".join(
        f"coalesce({_PART.format(table='s.', n=n)} = l.{column}, {_PART.format(table='s.', n=n)} IS NULL)"
        for n, column in enumerate(("app_version", "code", "name"))
    )
    + ")"
)
# The first subquery runs once per statement, and only if a job names an executor.
MET: Final = (
    "(s.executor IS NULL OR s.executor = (SELECT l.name FROM holdfast_lease l WHERE l.id = :lease)"
    f" OR ({_READABLE.format(table='s.')} AND {_OF_LEASE}))"
)
PIN: Final = (
    f"UPDATE holdfast_job_state SET executor = char(CASE WHEN {CODE} IS NULL THEN 31 ELSE 30 END)"
    f" || json_array(:version, {CODE}, {LABEL})"
    " WHERE n IN (SELECT value FROM json_each(:numbers)) AND kind IN (SELECT value FROM json_each(:pins))"
)
HOLD: Final = (
    f"UPDATE holdfast_job_state SET executor = char(30) || json_array({VERSION}, '{NO_CODE}', {LABEL}) WHERE id = :id"
)
