"""Logs, trace context, OpenTelemetry, Prometheus. Traces and metrics are off until the program uses them.

The rest of Holdfast uses ``tracing`` (the current trace) and ``observers`` (the watchers of jobs that are enqueued and
run). Neither imports a package that may not be installed.
"""
