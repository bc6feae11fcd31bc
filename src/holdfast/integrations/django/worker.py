"""The app for worker processes: ``holdfast worker holdfast.integrations.django.worker:load``."""

from __future__ import annotations

import logging
import sys

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from holdfast.integrations.django.application import DjangoApp, get_app
from holdfast.integrations.django.compat import FRAMEWORK
from holdfast.telemetry.logs import HANDLER


def load() -> DjangoApp:
    """Return the app with all tasks and jobs in the modules ``tasks`` and ``jobs`` of the project's apps."""
    app = get_app()  # sets Django up, in a process that Holdfast started
    _log_once()
    from holdfast.integrations.django.backend import declare_all, register
    from holdfast.integrations.django.compat import Task

    autodiscover_modules("tasks", "jobs")
    for config in apps.get_app_configs():
        module = sys.modules.get(f"{config.name}.tasks")
        for value in vars(module).values() if module else ():
            if isinstance(value, Task):
                register(value)
    declare_all(app)
    app.session.follow()
    return app


def _log_once() -> None:
    """Remove Django's console handler if Holdfast's command line has its own on the root logger.

    Otherwise lines of ``django.tasks`` would be printed twice. They follow ``--log-level``, unless ``LOGGING`` has a
    level for them: Django's default for ``django`` is INFO.
    """
    logger, root, tasks = logging.getLogger("django"), logging.getLogger(), logging.getLogger(FRAMEWORK)
    if not any(handler.name == HANDLER for handler in root.handlers):
        return
    if tasks.level == logging.NOTSET:
        tasks.setLevel(root.level)
    if logger.propagate:
        logger.handlers[:] = [handler for handler in logger.handlers if type(handler) is not logging.StreamHandler]
