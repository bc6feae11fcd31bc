# ruff: noqa
from edit import swap

swap("src/holdfast/telemetry/tracebacks.py", '_PACKAGE / "calling.py"', '_PACKAGE / "app" / "handlers.py"')
