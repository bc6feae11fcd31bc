"""From a name to addresses, once: every answer is judged, and only what was judged is connected to (rule 1).

A name whose answers are partly good is refused whole: whoever mixes them wants us to try until one of the others is
taken. Forms such as 2130706433 or 0x7f.1 need no care of their own: the resolver makes addresses of them (rule 3).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from holdfast.egress.addresses import refusal
from holdfast.egress.policy import EgressPolicy
from holdfast.egress.target import Target, refused
from holdfast.errors import EgressTimeout, EgressUnreachable

ANSWERS: Final = 64


async def resolve(target: Target, policy: EgressPolicy) -> list[str]:
    """The addresses, all of them judged; at least one."""
    ask = policy.resolver or _system
    try:
        async with asyncio.timeout(policy.connect):
            found = list(dict.fromkeys(await ask(target.host, target.port)))
    except TimeoutError:
        raise EgressTimeout(f"{target.host} was not resolved within {policy.connect} s") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise EgressUnreachable(f"{target.host} cannot be resolved: {why}") from None
    if not found:
        raise EgressUnreachable(f"{target.host} has no address")
    if len(found) > ANSWERS:
        raise refused(f"{target.host} has more than {ANSWERS} addresses")
    for address in found:
        why_not = refusal(address, policy.open_networks, policy.closed_networks)
        if why_not is not None:
            raise refused(
                f"{target.host} may not be reached: {why_not}",
                fix="If it is meant to be, the operator can allow its network.",
            )
    return found


async def _system(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [f"{place[0]}%{place[3]}" if len(place) == 4 and place[3] else str(place[0]) for *_, place in found]
