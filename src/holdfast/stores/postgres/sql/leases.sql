-- Open a lease for a worker, which shows that it is alive. Jobs name the lease that holds them; (lease, attempt) is the fence
-- of every later write. One renewal per process covers all of its jobs.
create or replace function open_lease(holder text, ttl interval default '30 s', name text default 'worker',
                                      for_tenant text default null, token uuid default null,
                                      kinds text[] default null, queues text[] default null,
                                      slots integer default null, version text default null)
returns table (lease uuid, until timestamptz) language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_id    uuid := coalesce(open_lease.token, uuid7());
    v_scope text := enter(open_lease.for_tenant);
begin
    perform check_span('ttl', open_lease.ttl, '10 ms');
    perform current_base();
    perform share_when_needed();
    return query
    insert into lease as l (id, tenant, name, holder, until, opened_at, renewed_at, kinds, queues, slots,
                            version)
    values (v_id, v_scope, open_lease.name, open_lease.holder, v_now + open_lease.ttl, v_now, v_now, open_lease.kinds,
            open_lease.queues, open_lease.slots, open_lease.version)
    returning l.id, l.until;
    if open_lease.ttl < interval '10 s' then   -- it may end before the others look again
        perform announce_upkeep();
    end if;
end $$;

-- Open a lease for a worker that says which version of the application it runs, which code (a fingerprint of its handlers),
-- and the jobs of which kinds stay with their version once they have started.
create or replace function open_worker(holder text, ttl interval, name text, for_tenant text, kinds text[], queues text[],
                                       slots integer, version text, app_version text, code text, pins text[])
returns table (lease uuid, until timestamptz) language plpgsql security definer set search_path from current as $$
declare v_opened record;
begin
    select * into v_opened from open_lease(open_worker.holder, open_worker.ttl, open_worker.name, open_worker.for_tenant,
        kinds => open_worker.kinds, queues => open_worker.queues, slots => open_worker.slots, version => open_worker.version) o;
    update lease l set app_version = open_worker.app_version, code = open_worker.code,
           pins = case when open_worker.app_version is not null then nullif(open_worker.pins, '{}') end
     where l.id = v_opened.lease;
    return query select v_opened.lease, v_opened.until;
end $$;

-- Renew a lease. Returns null if it has ended and its jobs belong to other workers, 'drain' or 'stop' if an operator
-- requested that the worker stops (request_stop), and 'kept' otherwise.
create or replace function heartbeat(lease uuid, ttl interval default '30 s', for_tenant text default null) returns text
language plpgsql security definer set search_path from current as $$
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(heartbeat.for_tenant);
    v_request text;
begin
    perform check_span('ttl', heartbeat.ttl, '10 ms');
    -- After the clock was set back, the end of the lease is too far in the future.
    update lease l set until = case when l.renewed_at > v_now + interval '5 s' then v_now + heartbeat.ttl
                                    else greatest(l.until, v_now + heartbeat.ttl) end,
           -- Otherwise the latest of two renewals counts that waited for each other.
           renewed_at = case when l.renewed_at > v_now + interval '5 s' then v_now else greatest(l.renewed_at, v_now) end,
           renewals = l.renewals + 1
     where l.id = heartbeat.lease and l.ended_at is null and l.tenant = v_scope
    returning coalesce(l.stop_request, 'kept') into v_request;
    return v_request;
end $$;

-- Renew a lease. Returns false if it has ended: its jobs belong to other workers, so the caller must stop working on them.
create or replace function renew_lease(lease uuid, ttl interval default '30 s', for_tenant text default null) returns boolean
language sql security definer set search_path from current as $$
    select heartbeat(renew_lease.lease, renew_lease.ttl, renew_lease.for_tenant) is not null;
$$;

-- Ask a worker to end: 'drain' lets its running jobs finish, 'stop' gives them its grace period. The worker reads the request
-- with its next heartbeat. `worker` is the holder of its lease. A later request replaces an earlier one.
create or replace function request_stop(worker text, mode text default 'drain', for_tenant text default null, actor text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(request_stop.for_tenant, request_stop.actor);
begin
    update lease l set stop_request = request_stop.mode, stop_requested_at = v_now, stop_requested_by = actor()
     where l.holder = request_stop.worker and l.ended_at is null and l.until > v_now and (v_scope = '*' or l.tenant = v_scope);
    return found;
end $$;

-- End a lease when its worker shuts down: the next maintenance run frees its jobs without waiting for the lease to expire.
create or replace function end_lease(lease uuid, why text default 'closed', for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(end_lease.for_tenant);
begin
    update lease l set ended_at = v_now, ended_why = end_lease.why
     where l.id = end_lease.lease and l.ended_at is null and l.tenant = v_scope;
    if not found then
        return false;
    end if;
    perform announce_upkeep();
    return true;
end $$;

-- Return how often a job was taken from this lease. A worker compares the number with the last one and calls holdings only if
-- it has changed.
create or replace function cancellations(lease uuid, for_tenant text default null) returns integer
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(cancellations.for_tenant);
begin
    return (select coalesce((select r.times from cancellation r where r.lease = l.id), 0) from lease l
             where l.id = cancellations.lease and l.tenant = v_scope);
end $$;

-- Return the jobs that a lease holds, with their attempts and whether they have started.
create or replace function holdings(lease uuid, for_tenant text default null)
returns table (id uuid, attempt integer, begun boolean) language plpgsql security definer set search_path from current as $$
begin
    perform act_under(holdings.lease, holdings.for_tenant);
    return query select s.id, s.attempt, s.state = 'in_progress' from job_state s
     where s.lease = holdings.lease and s.state in ('leased', 'in_progress');
end $$;

-- Request a notification when a job ends, for that many seconds.
create or replace function watch_job(job uuid, seconds double precision, for_tenant text default null) returns void
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(watch_job.for_tenant);
begin
    insert into watch as w (job_id, tenant, until)
    select j.id, j.tenant, clock_timestamp() + make_interval(secs => least(greatest(watch_job.seconds, 0), 3600))
      from job j where j.id = watch_job.job and (v_scope = '*' or j.tenant = v_scope)
    on conflict (job_id) do update set until = greatest(w.until, excluded.until)
     where w.until < excluded.until;
end $$;

-- Whether a label may open a lease and claim jobs: it must be registered as an executor. While none is registered, every label
-- may or none, as the deployment's policy says.
create or replace function executes(p_label text) returns boolean language sql stable
begin atomic
    select not exists (select from executor) and not (select d.listed_only from dispatch d)
        or exists (select from executor e where e.label = p_label and e.role = 'executor');
end;

create or replace function refuse_executor(p_label text) returns void language plpgsql set search_path from current as $$
begin
    raise exception 'executor % %', p_label,
        case when exists (select from executor e where e.label = p_label) then 'is a generator, which plans work and does not execute it'
             else 'is not registered as an executor' end
        using errcode = 'ZH041', hint = 'Register the label: select * from set_executor(label).';
end $$;

create or replace function guard_lease() returns trigger language plpgsql set search_path from current as $$
begin
    if not executes(new.name) then
        perform refuse_executor(new.name);
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert or update of name on lease for each row execute function guard_lease();
