"""``holdfast versions``."""

from __future__ import annotations

from typing import Any

from holdfast.cli.derived import derive
from holdfast.cli.output import counted, line, moment
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.versions.model import MismatchedJob, MovedJobs, PatchStatus, VersionStatus, differing
from holdfast.features.versions.operations import Versions

commands = Commands("List versions of the application, and move jobs between them.")


@derive(commands, "list", AnyTenant, Versions.list, "holdfast versions list --all-tenants")
def list_versions(session: AnyTenant, result: list[VersionStatus]) -> None:
    session.print_list(
        result,
        {
            "version": lambda each: line(each.version),
            "workers": lambda each: f"{each.workers:,}",
            "pinned": lambda each: f"{each.pinned:,}{' or more' if each.capped else ''}",
            "running": lambda each: f"{each.running:,}",
            "held": lambda each: f"{each.held:,}",
            "safe to retire": lambda each: "yes" if each.safe_to_retire else "no",
        },
        none="No worker reports a version. Set one: App(version=…) or HOLDFAST_APP_VERSION",
        keep=("version", "safe to retire"),
    )


@derive(commands, "held", AnyTenant, Versions.held, "holdfast versions held --all-tenants")
def held(session: AnyTenant, result: list[MismatchedJob]) -> None:
    session.print_list(
        result,
        {
            "id": lambda job: job.job_id,
            "kind": lambda job: line(job.kind),
            "version": lambda job: line(job.version or ""),
            "call": lambda job: str(_first(job)["n"]),
            "recorded": lambda job: line(_first(job)["recorded"]),
            "called": lambda job: line(_first(job)["called"]),
            "held since": lambda job: moment(job.since),
            "until": lambda job: moment(job.until),
        },
        none="No job is held.",
        keep=("id", "recorded", "called"),
    )


def _first(job: MismatchedJob) -> dict[str, Any]:
    """The first call that differs."""
    return next(iter(differing(job.steps)), {"n": "", "recorded": "", "called": ""})


@derive(commands, "patches", AnyTenant, Versions.patches, "holdfast versions patches")
def patches(session: AnyTenant, result: list[PatchStatus]) -> None:
    session.print_list(
        result,
        {
            "patch": lambda patch: line(patch.name),
            "kind": lambda patch: line(patch.kind),
            "since": lambda patch: moment(patch.first_at),
            "old path": lambda patch: f"{patch.old_path:,}",
            "new path": lambda patch: f"{patch.recorded:,}",
            "now": lambda patch: (
                "remove the call" if patch.removable else "retire it" if patch.old_path_removable else "keep it"
            ),
        },
        none="No job has recorded a patch.",
        keep=("patch", "now"),
    )


@derive(
    commands,
    "move",
    AnyTenant,
    Versions.move,
    "holdfast versions move 1.4 --to 1.5 --reason '1.4 is retired'",
    "holdfast versions move 1.4 --to 1.5 --job 01a1f443-c570-7143-a29a-e4572e27a72f",
)
def move(session: AnyTenant, result: MovedJobs) -> None:
    moved = counted(result.moved, "job")
    session.answer(result, f"Moved {moved} from version {line(result.version)} to {line(result.to)}.")
