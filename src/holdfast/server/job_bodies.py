"""The body of an enqueue: its fields are the declared options."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, create_model

from holdfast.engine.job_options import EnqueueOptions
from holdfast.server.bodies import Fields, RetryPolicy, Text
from holdfast.server.derived import fields_of


class JobOptions(create_model("Declared", __base__=Fields, **fields_of(EnqueueOptions))):  # type: ignore[misc]
    """The options of enqueue. Not a ``Body``: ``read`` limits its errors instead, which is faster for the one request
    that arrives a thousand times per second."""

    def options(self, *excluded: str) -> dict[str, Any]:
        """The options as keyword arguments of the library, without nulls and without the fields named in
        ``excluded``."""
        options = {name: value for name, value in self.given().items() if value is not None and name not in excluded}
        if isinstance(options.get("retry"), RetryPolicy):
            options["retry"] = options["retry"].policy()
        return options


class Enqueue(JobOptions):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"kind": "send_mail", "payload": {"to": "ada@example.com"}, "queue": "mail", "key": "welcome-7"},
                {"kind": "report", "payload": {"month": "2027-01"}, "delay": "5m", "tags": ["monthly"]},
            ]
        },
    )

    kind: Text
    payload: Any = Field(default=None, description="The arguments as a JSON object.")
