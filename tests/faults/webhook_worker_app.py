"""The app of the worker processes in `test_27_webhook_storm.py`: no jobs, only the built-in webhook deliveries."""

from __future__ import annotations

import os

from holdfast import App
from holdfast.outgoing import EgressPolicy

app = App(
    name="webhooks", enqueued_by="tester", egress=EgressPolicy(ports=(int(os.environ["PORT"]),), allow=("127.0.0.0/8",))
)
