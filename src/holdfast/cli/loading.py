"""The app that a command was given: ``module:app`` and, where it leaves that open, its database."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import config
from holdfast.app import App
from holdfast.app.loading import find_app
from holdfast.cli.session import refuse_unready, wait_ready
from holdfast.errors import InvalidSetting


def load_app(name: str, url: str | None = None) -> App:
    """Import it from the current directory or the path. ``url`` is for an app that leaves the database to its
    environment."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name = module_of(name)
    if url is not None:
        os.environ[config.URL_VARIABLE] = url
    app = find_app(name)
    if url is not None and app.store.url != url:
        raise InvalidSetting(f"{name} names a database of its own", code="conflicting_options", fix="Leave out --url.")
    return app


def module_of(name: str) -> str:
    """A file (``examples/shop.py``, ``examples/shop.py:app``) as the module it is, found beside itself."""
    path, _, attribute = name.partition(":")
    if not path.endswith(".py"):
        return name
    file = Path(path).resolve()
    if not file.is_file():
        raise InvalidSetting(
            f"there is no file {path}", code="module_not_found", fix="Name it as it is seen from this directory."
        )
    if not file.stem.isidentifier():
        raise InvalidSetting(f"{file.name} cannot be imported by that name", code="invalid_app")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return f"{file.stem}:{attribute}" if attribute else file.stem


def load_runnable(name: str, url: str | None, *, wait: bool = False) -> App:
    """An app to run jobs of: it has some, and its database is there, or, where it is to ``wait``, soon will be."""
    app = load_app(name, url)
    if not app.kinds:
        raise InvalidSetting(f"{name} declares no jobs", code="no_kinds", fix="Declare some with @app.job().")
    if not app.store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        (wait_ready if wait else refuse_unready)(app.store)
    return app
