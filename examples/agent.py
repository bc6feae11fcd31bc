"""An AI agent that plans, waits for approval of a budget, buys, sleeps, waits for an event, and is killed in between.

    python examples/agent.py                             # on a new SQLite file
    python examples/agent.py --url postgresql://…        # on a migrated database

The program starts two workers and kills one with SIGKILL while the agent is paying. It also plays the office, which
enqueues the job and decides the approval. The shop is a file, which no transaction rolls back: it shows what was really
bought, and how often.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field

import holdfast

T = TypeVar("T")

SCRATCH = Path(os.environ.get("AGENT_SCRATCH", "."))
app = holdfast.App(os.environ.get("HOLDFAST_URL", "sqlite:///agent.db"), name="agent")


# --- the agent ---


class Purchase(BaseModel):
    item: str
    price: int


class Budget(BaseModel):
    """The form that the approver fills in."""

    limit: int = Field(ge=0, le=1_000)
    note: str = ""


@app.job(timeout="1m")
async def errand(ctx: holdfast.Context, goal: str) -> dict[str, object]:
    # Each time the job continues, this function runs from the top, and completed steps return their recorded results.
    plan = await ctx.step("plan", make_plan, goal)
    decision = await ctx.approval(
        "budget",
        summary=f"Spend {sum(purchase.price for purchase in plan)} on {goal}?",
        data=[purchase.model_dump() for purchase in plan],
        form=Budget,
        approvers=["ada", "bob"],
        expires_in="2d",
    )
    # Not a step: it has no effect outside, and the same result each time.
    purchases = affordable(plan, decision.data.limit)
    receipts = [await ctx.step(f"buy {purchase.item}", buy, purchase) for purchase in purchases]
    await ctx.sleep("1s", "give them time to pack")
    delivery = await ctx.wait_for_event("delivered", match={"errand": ctx.job_id}, timeout="1d")
    return {"approved_by": decision.by, "receipts": receipts, "delivered_to": delivery.data["door"]}


def make_plan(goal: str) -> list[Purchase]:
    """Stands in for a language model, whose answer differs each time. So it must be a step."""
    note("think", goal)
    return [Purchase(item=item, price=price) for item, price in (("flour", 12), ("cherries", 35), ("a band", 900))]


def affordable(plan: list[Purchase], limit: int) -> list[Purchase]:
    chosen = []
    for purchase in plan:
        if purchase.price <= limit:
            limit -= purchase.price
            chosen.append(purchase)
    return chosen


def buy(purchase: Purchase) -> str:
    """Buy an item. The shop accepts an idempotency key; ``step_key()`` is the same for every attempt of a step."""
    key = holdfast.step_key()
    note("call", f"{purchase.item}: {key}")
    sold = [line for line in notes("sell") if line.endswith(key)]
    if not sold:
        note("sell", f"{purchase.item} for {purchase.price}: {key}")
    if purchase.item == "cherries":
        wait_to_be_killed()  # the item is sold, the step is not recorded: the worst moment
    return f"{purchase.item} for {purchase.price}" + (" (had been sold already)" if sold else "")


# --- the outside world: files, which no transaction rolls back ---


def note(topic: str, line: str) -> None:
    with (SCRATCH / f"{topic}.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def notes(topic: str, scratch: Path = SCRATCH) -> list[str]:
    path = scratch / f"{topic}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def wait_to_be_killed() -> None:
    """Let the first worker that gets here wait for its end."""
    if not notes("waiting"):
        note("waiting", str(os.getpid()))
        time.sleep(60)


# --- the demonstration: the office, and a kill ---


@dataclass(frozen=True)
class Outcome:
    result: dict[str, object]
    plans: int
    calls: int
    sold: list[str]
    crashes: int


def start_worker(url: str, scratch: Path) -> subprocess.Popen[bytes]:
    """Start ``holdfast worker agent:app``, with a short lease so that the other worker takes over soon."""
    options = ("--lease", "2s", "--poll", "50ms")
    command = (sys.executable, "-m", "holdfast", "worker", "agent:app", *options)
    environment = os.environ | {"HOLDFAST_URL": url, "AGENT_SCRATCH": str(scratch)}
    with (scratch / "workers.log").open("ab") as log:
        return subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log)


def wait_for(what: str, read: Callable[[], T]) -> T:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        value = read()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"waited a minute for {what}")


def main(url: str, scratch: Path) -> Outcome:
    workers = {worker.pid: worker for worker in (start_worker(url, scratch), start_worker(url, scratch))}
    try:
        with closing(holdfast.App(url, name="office")) as office:
            return demonstrate(office, workers, scratch)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()


def demonstrate(office: holdfast.App, workers: dict[int, subprocess.Popen[bytes]], scratch: Path) -> Outcome:
    handle = office.enqueue("errand", {"goal": "a cherry cake for twelve"})
    approval = wait_for("the approval", lambda: office.approvals.list(job_id=handle.id))[0]
    print(f"The agent has a plan and waits for approval: {approval.summary}")
    for purchase in approval.data:
        print(f"    {purchase['price']:>4}  {purchase['item']}")
    print(f"The job is {handle.state()} and occupies no worker.")
    office.approvals.approve(approval.id, by="ada", comment="no band", data={"limit": 100})
    print("Ada approves, with a limit of 100.")

    pid = wait_for("the agent to pay", lambda: notes("waiting", scratch))[0]
    worker = workers.pop(int(pid))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    print(f"Killed worker {pid}: the cherries are sold, but the step is not recorded.")

    wait_for("the agent to wait", lambda: any(event.meta.get("waits_for") for event in handle.history()))
    print(f"The other worker continued. The agent has slept and waits for the delivery ({handle.state()}).")
    office.send_event("delivered", {"errand": handle.id, "door": "the back door"})
    result = handle.result(timeout="60s")
    plans, calls, sold = (notes(topic, scratch) for topic in ("think", "call", "sell"))
    outcome = Outcome(result, len(plans), len(calls), sold, handle.get().crashes)
    print(f"Done: {result}")
    print(f"Plans made: {outcome.plans}. Calls to the shop: {outcome.calls}. Sold: {len(outcome.sold)}.")
    print("The call for the cherries was made again, with the same key; nothing was bought twice.")
    return outcome


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    parser = argparse.ArgumentParser(description="An agent with an approval, a sleep, an event and a crash.")
    parser.add_argument("--url", default=f"sqlite:///{folder}/agent.db", help="the database; else a new SQLite file")
    main(parser.parse_args().url, folder)
