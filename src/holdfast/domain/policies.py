"""How often a job is tried, and how long it waits in between (CX-9, JF-5, HK-3).

Invariant: ``least(cap, base * factor ^ greatest(0, retry - 1 - head))`` is the whole rule. It is written once
here and once in SQL, and a test compares the two. The bounds below keep the power finite for every retry
the database allows, so that the SQL needs no guard. Called by ``settlement.decide``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from holdfast.domain.errors import InvalidSetting
from holdfast.domain.payload import JsonValue
from holdfast.domain.states import State

MAX_DELAY: Final = 30 * 86_400.0
# 30 days times 1,000 ^ 99 is 2.6e303: no retry up to the hundredth overflows a double.
MAX_FACTOR: Final = 1_000.0
MAX_RETRIES: Final = 100
DEFAULT_MAX_ATTEMPTS: Final = 5
