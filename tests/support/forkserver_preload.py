"""Imported by the fork server (`forkserver.py`): what every forked process would otherwise load first."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

from holdfast import App

# Imports of the first signature and the first command; some are private modules that may disappear.
for _name in (
    *("pydantic.fields", "pydantic.types", "pydantic.plugin._loader", "importlib.readers", "pwd"),
    *("holdfast.cli.main", "typer._adapters", "typer._click.decorators"),
):
    with suppress(ImportError):
        importlib.import_module(_name)
for _url in ("sqlite:///:memory:", "postgresql://nowhere/"):
    App(_url, name="preloaded", enqueued_by="tests")  # reads the SQL scripts; opens no database

# A garbage collection in a child would copy every page it visits.
gc.collect()
gc.freeze()
