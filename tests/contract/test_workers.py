"""Workers are listed with what they serve and run; a stop request reaches the worker with its heartbeat."""

from __future__ import annotations

import pytest

from holdfast.engine.job import worker_holder
from holdfast.features.assembly import Store
from tests.support.stores import claim, new_id, open_lease, put, spec

pytestmark = pytest.mark.req("JF-16")


def test_worker_is_listed_and_receives_stop_requests(store: Store) -> None:
    run, name = store.run, worker_holder(new_id(), "host-1", 4711)
    lease = run(store.leases.open(name, 30, "default", "worker", ("echo",), ("default",), 4, "1.2.3")).id
    (job,) = put(store, spec())
    claim(store, lease, tenant="default")
    (worker,) = run(store.health.workers("default")).workers
    assert (worker.host, worker.pid, worker.version, worker.queues, worker.busy) == (
        *("host-1", 4711, "1.2.3"),
        *(("default",), 1),
    )
    assert worker.id in name
    assert worker.job_ids == (job,)
    assert run(store.leases.renew(lease, 30, "default")) == "kept"
    assert not run(store.leases.request_stop(name, "drain", "ada", "acme"))
    assert run(store.leases.request_stop(name, "drain", "ada", "default"))
    assert run(store.leases.renew(lease, 30, "default")) == "drain"
    (worker,) = run(store.health.workers("*")).workers
    assert (worker.stop_request, worker.stop_requested_by) == ("drain", "ada")
    assert run(store.leases.request_stop(name, "stop", "ada", "*"))
    assert run(store.leases.renew(lease, 30, "default")) == "stop"
    run(store.leases.end(lease, "closed", "default"))
    assert not run(store.leases.request_stop(name, "drain", "ada", "default"))


def test_jobs_of_other_tenants_are_counted_but_not_named(store: Store) -> None:
    lease = open_lease(store)
    put(store, spec(), tenant="acme")
    claim(store, lease)
    (worker,) = store.run(store.health.workers("default")).workers
    assert (worker.busy, worker.job_ids, worker.host) == (1, (), None)
