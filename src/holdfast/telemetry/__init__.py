"""Logs, trace context, OpenTelemetry, Prometheus. Traces and metrics are off until the program uses them.

The rest of Holdfast uses ``observers``: the watchers of jobs that are enqueued and run, and the current trace. It
imports no package that may not be installed.
"""
