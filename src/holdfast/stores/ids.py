"""The ids that this process makes: of one maker, so that each sorts after all that were made before it."""

from __future__ import annotations

import os
import time

from holdfast.engine.ids import IdMaker

new_id = IdMaker(lambda: time.time_ns() // 1_000_000, os.urandom)
