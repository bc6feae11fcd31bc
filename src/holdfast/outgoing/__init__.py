"""Outgoing HTTP to URLs from untrusted sources, with a guard against requests to internal addresses (SSRF).

``send`` is the only way out. It resolves a name once, checks every address, and connects to a checked address.
"""

from holdfast.outgoing.policy import EgressPolicy, Resolver
from holdfast.outgoing.sender import Answer, Outgoing, send

__all__ = ["Answer", "EgressPolicy", "Outgoing", "Resolver", "send"]
