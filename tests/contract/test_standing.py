"""How queues and workers stand, and the ledger as people page through it: the same on every store, and bounded."""

from __future__ import annotations

import pytest

from holdfast import App
from holdfast.stores.auditing import EventFilter
from holdfast.stores.base import ClaimRequest, Store
from holdfast.stores.reads import audit
