"""The id generator of this process. There is one, so that each id sorts after all earlier ones."""

from __future__ import annotations

import os
import time

from holdfast.engine.ids import IdMaker

new_id = IdMaker(lambda: time.time_ns() // 1_000_000, os.urandom)
