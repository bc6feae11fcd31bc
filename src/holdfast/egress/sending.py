"""The one way out: check, resolve, judge, connect, read; and again for each redirect, if any are allowed."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Final

from holdfast.egress.answer import Answer
from holdfast.egress.policy import EgressPolicy
from holdfast.egress.request import Outgoing
from holdfast.egress.resolving import resolve
from holdfast.egress.target import Target, refused
from holdfast.errors import EgressTimeout

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


async def send(request: Outgoing, policy: EgressPolicy) -> Answer:
    """The answer, whatever its status. ``EgressRefused`` before anything is sent where the policy says no."""
    target = request.check(policy)
    limit = policy.total if request.timeout is None else min(policy.total, request.timeout)
    start = time.monotonic()
    try:
        async with asyncio.timeout(limit) as clock:
            for left in range(policy.redirects, -1, -1):
                answer = await _once(request, target, policy, start, clock.when() or 0.0)
                location = answer.header("location")
                if not policy.redirects or answer.status not in REDIRECTS or location is None:
                    return answer
                if left == 0:
                    break
                end = target.joined(location)
                request, target = request.redirected(answer.status, target, end), end
    except TimeoutError:
        raise EgressTimeout(f"{target.origin} had not answered after {limit} s") from None
    raise refused(f"more than {policy.redirects} redirects")


async def _once(request: Outgoing, target: Target, policy: EgressPolicy, start: float, until: float) -> Answer:
    from holdfast.egress.reading import body_of, headers_of
    from holdfast.egress.wire import exchange, pieces_of  # needs the extra `http`

    policy.check(target)
    addresses = await resolve(target, policy)
    async with exchange(request, target, addresses, policy) as (response, address):
        headers = headers_of(response.headers, policy)
        async with aclosing(pieces_of(response, target)) as pieces:
            body, truncated = await body_of(pieces, headers, policy, until)
    return Answer(response.status, headers, body, time.monotonic() - start, address, target.origin, truncated)
