"""``manage.py flush``, which test cases that commit use too: it cancels the unfinished jobs with the rows it deletes.

Ended jobs stay: the ledger only grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.commands.flush import Command as Flush
from django.db import connections

from holdfast.errors import SchemaMismatch


class Command(Flush):
    def handle(self, **options: Any) -> None:
        from holdfast.integrations.django.application import get_app

        app, emptied = get_app(), False

        def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            nonlocal emptied
            emptied = emptied or sql.lstrip().startswith(("TRUNCATE", "DELETE"))  # the user has confirmed
            return execute(sql, *rest)

        with connections[options["database"]].execute_wrapper(note):
            super().handle(**options)
        if not emptied or options["database"] != app.alias:
            return
        try:
            cancelled = app.session.cancel_unfinished("the database was flushed")
        except SchemaMismatch:  # the tables of Holdfast are not there
            return
        if cancelled and options["verbosity"]:
            self.stdout.write(f"Holdfast: {cancelled} unfinished {'job' if cancelled == 1 else 'jobs'} cancelled.")
