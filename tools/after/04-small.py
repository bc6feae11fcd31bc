# ruff: noqa
from edit import swap

swap(
    "src/holdfast/telemetry/tracebacks.py",
    "        Path(__file__).parent,\n",
    '        Path(__file__),\n        _PACKAGE / "worker",\n',
)
swap("src/holdfast/telemetry/tracebacks.py", '_PACKAGE / "arguments.py"', '_PACKAGE / "steps" / "signature.py"')
swap("tests/unit/test_failures.py", '"stopping.py"', '"shutdown.py"')
