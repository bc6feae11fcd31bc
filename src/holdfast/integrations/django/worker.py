"""The app for worker processes: ``holdfast worker holdfast.integrations.django.worker:load``."""

from __future__ import annotations

import sys

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from holdfast.integrations.django.application import DjangoApp, get_app


def load() -> DjangoApp:
    """Return the app with all tasks and jobs in the modules ``tasks`` and ``jobs`` of the project's apps."""
    app = get_app()  # sets Django up, in a process that Holdfast started
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
