"""What the worker processes of `test_27_webhook_storm.py` run: nothing of their own, and what every worker has."""

from __future__ import annotations

import os

from holdfast import App
from holdfast.outgoing import EgressPolicy

app = App(
    name="telling",
    enqueued_by="tester",
    egress=EgressPolicy(ports=(int(os.environ["PORT"]),), allow=("127.0.0.0/8",)),
)
