"""What a process of the tests has already when it is forked (`warm.py`): imports, and what each would make first."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

from holdfast import App

# What the first signature and the first command import; some of it is not ours to rely on.
for _name in (
    *("pydantic.fields", "pydantic.types", "pydantic.plugin._loader", "importlib.readers", "pwd"),
    *("holdfast.cli.main", "typer._adapters", "typer._click.decorators"),
):
    with suppress(ImportError):
        importlib.import_module(_name)
for _url in ("sqlite:///:memory:", "postgresql://nowhere/"):
    App(_url, name="preloaded", enqueued_by="tests")  # reads the scripts; nothing is opened

# The children would copy whatever a collection of theirs looks at.
gc.collect()
gc.freeze()
