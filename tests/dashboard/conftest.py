"""The dashboard on every store, asked in this process."""

from __future__ import annotations

from tests.api.conftest import anonymous, app, http, new_app, url

__all__ = ["anonymous", "app", "http", "new_app", "url"]
