"""A support agent that refunds orders. It is killed during a run, continues, and waits for approval before it pays.

    python examples/support_agent.py                            # on a new SQLite file
    python examples/support_agent.py --url postgresql://…      # on a migrated database

It is a Pydantic AI agent. Its model is a function that stands in for a language model, so the example needs no network
and no key. Everything above "The demonstration" is what you would write; two lines make the agent durable.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast.integrations.pydantic_ai import HoldfastAgent

T = TypeVar("T")

SCRATCH = Path(os.environ.get("SUPPORT_SCRATCH", "."))


# --- The agent ---


class Order(BaseModel):
    number: int
    total: int
    delivered: bool


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for a language model. Calls of a real one cost money, so a completed call must not be repeated."""
    note(f"model request {len(messages)}")
    last = messages[-1]
    assert isinstance(last, ModelRequest)
    results = {part.tool_name: part.content for part in last.parts if isinstance(part, ToolReturnPart)}
    if not results:
        return ModelResponse(parts=[ToolCallPart("find_order", {"number": 4711}, tool_call_id="find-1")])
    if "find_order" in results:
        return ModelResponse(
            parts=[
                ToolCallPart("refund", {"number": 4711, "amount": 80, "reason": "it never came"}, tool_call_id="r-1")
            ]
        )
    return ModelResponse(parts=[TextPart(f"We are sorry about your order. {results['refund']}")])


agent = Agent(FunctionModel(think), name="support", instructions="Help customers. Refund what was not delivered.")


@agent.tool_plain
def find_order(number: int) -> Order:
    note(f"find_order {number}")
    wait_to_be_killed()
    return Order(number=number, total=80, delivered=False)


@agent.tool_plain(requires_approval=True)
def refund(number: int, amount: int, reason: str) -> str:
    # The key is the same for every attempt of this call: a bank that accepts idempotency keys pays once.
    note(f"refund {number} {amount} with key {holdfast.step_key()}")
    return f"{amount} euros are on their way."


# --- Two lines make it durable ---

app = holdfast.App(os.environ.get("HOLDFAST_URL", "sqlite:///support.db"), name="support")
support = HoldfastAgent(agent, app, budget=10_000, approval={"approvers": ["ada", "bob"], "expires_in": "2d"})


# --- The demonstration ---


def note(line: str) -> None:
    """Record what really happens, in a file that no transaction rolls back."""
    with (SCRATCH / "done.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def noted(scratch: Path) -> list[str]:
    path = scratch / "done.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def wait_to_be_killed() -> None:
    """Let the first worker that looks for an order wait for its end."""
    if not (SCRATCH / "waiting").exists():
        (SCRATCH / "waiting").write_text(str(os.getpid()))
        time.sleep(60)


def start_worker(url: str, scratch: Path) -> subprocess.Popen[bytes]:
    """Start ``holdfast worker support_agent:app``, with a short lease: its jobs are recovered within two seconds."""
    command = (sys.executable, "-m", "holdfast", "worker", "support_agent:app", "--lease", "2s", "--poll", "50ms")
    environment = os.environ | {"HOLDFAST_URL": url, "SUPPORT_SCRATCH": str(scratch)}
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


def main(url: str, scratch: Path) -> dict[str, object]:
    worker = start_worker(url, scratch)
    try:
        with closing(holdfast.App(url, name="desk")) as desk:
            handle = desk.enqueue("support", {"prompt": "My order 4711 never came. I want my money back."})
            print(f"Enqueued job {handle.id}. The agent calls its model and looks for the order.")
            wait_for("the agent to look for the order", (scratch / "waiting").exists)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            print(f"Killed worker {worker.pid} with SIGKILL during a tool call.")

            worker = start_worker(url, scratch)
            print(f"Started worker {worker.pid}.")
            approval = wait_for("the approval", lambda: desk.approvals.list(job_id=handle.id))[0]
            print(f"Waiting for approval: {approval.summary}")
            print(f"The job is {handle.state()}. It occupies no worker and can wait for days.")
            desk.approvals.approve(approval.id, by="ada", comment="we keep the postage", data={"amount": 75})
            print("Ada approves, and changes the amount to 75.")
            result = handle.result(timeout="60s")
            print(f"The agent answers: {result}")
            return check(desk, handle, noted(scratch))
    finally:
        worker.kill()
        worker.wait()


def check(desk: holdfast.App, handle: holdfast.Handle[object], done: list[str]) -> dict[str, object]:
    """Compare the database with what really happened."""
    steps = [step for step in handle.steps() if step.kind == "step"]
    requests = [step for step in steps if step.name == "support: model request"]
    (line,) = desk.usage.list(by="kind")
    counted = Counter(" ".join(entry.split()[:2]) for entry in done)
    figures: dict[str, object] = {
        "state": str(handle.state()),
        "crashes": handle.get().crashes,
        "model requests recorded": len(requests),
        "model requests made": sum(entry.startswith("model request") for entry in done),
        "find_order calls made": counted["find_order 4711"],
        "refunds made": [entry.split(" with key ")[0] for entry in done if entry.startswith("refund")],
        "tokens charged": line.cost,
        "tokens recorded": sum(step.value["agent_cost"] for step in requests),
    }
    for name, value in figures.items():
        print(f"    {name:<26} {value}")
    expected = {
        "state": "succeeded",
        "crashes": 1,
        "model requests recorded": 3,
        "model requests made": 3,
        "find_order calls made": 2,  # the interrupted call was not recorded, so it is repeated
        "refunds made": ["refund 4711 75"],
        "tokens charged": figures["tokens recorded"],
    }
    wrong = {name: figures[name] for name, value in expected.items() if figures[name] != value}
    if wrong:
        raise SystemExit(f"These figures are wrong: {wrong}")
    print("All figures are right: no recorded call was repeated, and the refund was paid once.")
    return figures


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    parser = argparse.ArgumentParser(
        description="A support agent that survives kill -9 and waits for approval before it pays."
    )
    parser.add_argument("--url", default=f"sqlite:///{folder}/support.db", help="the database; else a new SQLite file")
    main(parser.parse_args().url, folder)
