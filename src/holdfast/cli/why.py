"""``holdfast why``: why a job is where it is, and what would change it."""

from __future__ import annotations

from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import emit, line, plain, state_text, write
from holdfast.cli.session import AnyTenant
from holdfast.features.jobs.views import why as ask


def why(session: AnyTenant, job: options.JobId) -> None:
    """Say why a job is where it is and does not run: every reason that holds, and what would change it."""
    whose = session.scope
    with session.connect() as client:
        found = client.run(ask(client.verbs, job, whose))
    if session.as_json:
        emit({"job": found.job.id, "state": found.job.state, "reasons": found.reasons})
        return
    write(Text.assemble(f"{line(found.job.kind)}  {found.job.id}  ", state_text(found.job.state)))
    for reason in found.reasons:
        write(Text.assemble(("- ", "dim"), plain(reason.says)))
        if reason.change is not None:
            write(Text.assemble(("  → ", "dim"), plain(reason.change)))
