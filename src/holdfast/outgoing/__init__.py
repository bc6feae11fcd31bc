"""Outgoing HTTP that can be pointed at strangers' URLs: the guard against being used to reach what is ours.

``send`` is the only way out. It resolves a name once, judges every answer, and connects to what it has judged.
"""

from holdfast.outgoing.policy import EgressPolicy, Resolver
from holdfast.outgoing.sender import Answer, Outgoing, send

__all__ = ["Answer", "EgressPolicy", "Outgoing", "Resolver", "send"]
