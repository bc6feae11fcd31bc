"""Import every module first, each in a process of its own, so that no module needs another to have been imported."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback

import holdfast

failed = 0
for found in pkgutil.walk_packages(holdfast.__path__, "holdfast.", onerror=lambda name: print("cannot import", name)):
    if found.name in sys.modules or found.name.endswith("__main__"):
        continue
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(found.name)
        except BaseException:
            print(f"--- {found.name}")
            traceback.print_exc(limit=-3)
            os._exit(1)
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
sys.exit(1 if failed else 0)
