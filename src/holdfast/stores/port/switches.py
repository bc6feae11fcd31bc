"""The port of pausing (DP-18): a part of ``Verbs`` in ``base``."""

from __future__ import annotations

from typing import Protocol

from holdfast.features.limits.model import Pausing, Switch
from holdfast.stores.flow import Flow


class SwitchVerbs(Protocol):
    def pause(self, what: Pausing, actor: str) -> Flow[Switch]:
        """Nothing of it is taken any more once this has answered; said anew, it takes the place of what was said."""
        ...

    def resume(self, scope: str, name: str, actor: str, tenant: str) -> Flow[bool]:
        """False when it is not paused. What was held back goes on."""
        ...

    def switches(self, tenant: str) -> Flow[list[Switch]]:
        """What is paused of this tenant's, or of everybody's, the widest first."""
        ...
