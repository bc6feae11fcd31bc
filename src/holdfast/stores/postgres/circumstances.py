"""The verbs around a job's circumstances, its chain of retries, and who may execute."""

from __future__ import annotations

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.features.agents.model import AHEAD, Circumstances, Executor, WorkerSeen
from holdfast.features.health.statistics import MOST_WORKERS, WorkerPulse
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.reads import Reads
from holdfast.stores.reads.jobs import JOB_COLUMNS


class CircumstanceVerbs(Calls, Reads):
    @flow(single=True, writes=False)
    def chain(self, job_id: str, tenant: str) -> Steps[list[Job]]:
        text = f"select {JOB_COLUMNS} from {self.dialect.schema}chain(%s, %s) j"
        rows = yield Statement(text, (parse_id(job_id), tenant), alone=True)
        return [self._job(row) for row in rows]

    @flow(single=True)
    def circumstances(self, job_id: str, tenant: str) -> Steps[Circumstances | None]:
        rows = yield self._look("circumstances", "%s, %s, %s", parse_id(job_id), AHEAD, tenant)
        if not rows:
            return None
        now, note, holder, label, until, held, ahead, workers = rows[0]
        time = self.dialect.codec.time
        seen = tuple(
            WorkerSeen(
                w["label"],
                w["holder"],
                w["tenant"],
                None if w["kinds"] is None else tuple(w["kinds"]),
                None if w["queues"] is None else tuple(w["queues"]),
                w["slots"],
                w["busy"],
            )
            for w in workers or ()
        )
        ends = None if until is None else time(until)
        return Circumstances(time(now), note or {}, holder, label, ends, held, ahead, seen)

    def _workers(self, tenant: str) -> Steps[list[WorkerPulse]]:
        rows = yield self._look("worker_standings", "%s, %s", MOST_WORKERS, tenant)
        decode = Record.decoder(WorkerPulse, self.dialect.codec)
        return [decode(row) for row in rows]

    @flow(single=True)
    def add_executor(self, label: str, role: str, actor: str) -> Steps[Executor]:
        columns = Record.columns(Executor)
        text = f"select {columns} from {self.dialect.schema}add_executor(%s, %s, %s)"
        rows = yield Statement(text, (label, role, actor))
        return Record.decoder(Executor, self.dialect.codec)(rows[0])

    @flow(single=True)
    def remove_executor(self, label: str, actor: str | None = None) -> Steps[bool]:
        rows = yield self._call("remove_executor", "%s, %s", label, actor)
        return bool(rows[0][0])

    @flow(writes=False)
    def executors(self) -> Steps[list[Executor]]:
        rows = yield from self._ask("default", f"select {Record.columns(Executor)} from {{executor}} order by label")
        decode = Record.decoder(Executor, self.dialect.codec)
        return [decode(row) for row in rows]
