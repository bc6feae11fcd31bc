"""An AI agent that plans, asks a person for a budget, buys, sleeps, waits for an event, and is killed in the middle.

    python examples/agent.py                             # on a new SQLite file
    python examples/agent.py --url postgresql://…        # on a migrated database

The program starts two workers and kills one with SIGKILL while the agent is paying. It also plays the office, which
enqueues the job and decides the approval. The shop is a file outside all transactions: it shows what was really
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
    """What people fill in when they approve."""

    limit: int = Field(ge=0, le=1_000)
    note: str = ""


@app.job(timeout="1m")
async def errand(ctx: holdfast.Context, goal: str) -> dict[str, object]:
    # Each time the agent continues, this function starts at the top. Results of completed steps are loaded.
    plan = await ctx.step("plan", make_plan, goal)
    decision = await ctx.approval(
        "budget",
        summary=f"Spend {sum(one.price for one in plan)} on {goal}?",
        data=[one.model_dump() for one in plan],
        form=Budget,
        approvers=["ada", "bob"],
        expires_in="2d",
    )
    # Not a step: it has no external effect and gives the same result each time.
    wanted = affordable(plan, decision.data.limit)
    receipts = [await ctx.step(f"buy {one.item}", buy, one) for one in wanted]
    await ctx.sleep("1s", "give them time to pack")
    delivery = await ctx.wait_for_event("delivered", match={"errand": ctx.job_id}, timeout="1d")
    return {"approved_by": decision.by, "receipts": receipts, "delivered_to": delivery.data["door"]}


def make_plan(goal: str) -> list[Purchase]:
    """A stand-in for a language model. It answers differently each time, so it must be a step."""
    note("think", goal)
    return [Purchase(item=item, price=price) for item, price in (("flour", 12), ("cherries", 35), ("a band", 900))]


def affordable(plan: list[Purchase], limit: int) -> list[Purchase]:
    chosen = []
    for one in plan:
        if one.price <= limit:
            limit -= one.price
            chosen.append(one)
    return chosen


def buy(one: Purchase) -> str:
    """The shop accepts an idempotency key, which is the same for every attempt of this step."""
    key = holdfast.step_key()
    note("call", f"{one.item}: {key}")
    sold = [line for line in noted("sell") if line.endswith(key)]
    if not sold:
        note("sell", f"{one.item} for {one.price}: {key}")
    if one.item == "cherries":
        pull_the_plug_here()  # sold, but the step is not stored yet: the worst moment
    return f"{one.item} for {one.price}" + (" (had been sold already)" if sold else "")


# --- external effects: files, which no transaction rolls back ---


def note(book: str, line: str) -> None:
    with (SCRATCH / f"{book}.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def noted(book: str, scratch: Path = SCRATCH) -> list[str]:
    path = scratch / f"{book}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def pull_the_plug_here() -> None:
    """The first worker that gets here waits to be killed."""
    if not noted("plug"):
        note("plug", str(os.getpid()))
        time.sleep(60)


# --- the office, and the killer ---


@dataclass(frozen=True)
class Outcome:
    result: dict[str, object]
    thought: int
    calls: int
    sold: list[str]
    crashes: int


def start_worker(url: str, scratch: Path) -> subprocess.Popen[bytes]:
    """``holdfast worker agent:app``, with a short lease, so that the other worker takes over soon."""
    options = ("--lease", "2s", "--poll", "50ms")
    command = (sys.executable, "-m", "holdfast", "worker", "agent:app", *options)
    environment = os.environ | {"HOLDFAST_URL": url, "AGENT_SCRATCH": str(scratch)}
    with (scratch / "workers.log").open("ab") as log:
        return subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log)


def wait_for(what: str, look: Callable[[], T]) -> T:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"waited a minute for {what}")


def main(url: str, scratch: Path) -> Outcome:
    workers = {worker.pid: worker for worker in (start_worker(url, scratch), start_worker(url, scratch))}
    try:
        with closing(holdfast.App(url, name="office")) as office:
            return story(office, workers, scratch)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()


def story(office: holdfast.App, workers: dict[int, subprocess.Popen[bytes]], scratch: Path) -> Outcome:
    handle = office.enqueue("errand", {"goal": "a cherry cake for twelve"})
    approval = wait_for("the question", lambda: office.approvals.list(job_id=handle.id))[0]
    print(f"The agent has a plan, and asks: {approval.summary}")
    for line in approval.data:
        print(f"    {line['price']:>4}  {line['item']}")
    print(f"It is {handle.state()}: no worker has it in hand.")
    office.approvals.approve(approval.id, by="ada", comment="no band", data={"limit": 100})
    print("Ada approves, and fills in the form: at most 100.")

    pid = wait_for("the agent to pay", lambda: noted("plug", scratch))[0]
    worker = workers.pop(int(pid))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    print(f"Worker {pid} is killed: the cherries are sold, and nobody has written that down.")

    wait_for("the agent to wait", lambda: any(event.meta.get("waits_for") for event in handle.history()))
    print(f"The other worker went on. The agent has slept, and waits for the parcel ({handle.state()}).")
    office.send_event("delivered", {"errand": handle.id, "door": "the back door"})
    result = handle.result(timeout="60s")
    thought, calls, sold = (noted(book, scratch) for book in ("think", "call", "sell"))
    outcome = Outcome(result, len(thought), len(calls), sold, handle.get().crashes)
    print(f"Done: {result}")
    print(f"Plans made: {outcome.thought}. Calls to the shop: {outcome.calls}. Sold: {len(outcome.sold)}.")
    print("The call for the cherries was made again, with the same key; nothing was bought twice.")
    return outcome


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    parser = argparse.ArgumentParser(description="An agent with approval, crash and all.")
    parser.add_argument("--url", default=f"sqlite:///{folder}/agent.db", help="the database; else a new SQLite file")
    main(parser.parse_args().url, folder)
