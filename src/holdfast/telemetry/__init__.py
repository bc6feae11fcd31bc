"""Seeing what happens: trace context, OpenTelemetry, Prometheus. Everything here is off until somebody wants it.

The rest of Holdfast knows two things of it: ``tracing`` (which trace is current) and ``watching`` (who wants to be told
of jobs that are sent and run). Neither imports anything that is not installed.
"""
