-- A lease is a worker's word that it is alive. Jobs name the lease that holds them; the fence of every later
-- write is (lease, attempt). One renewal a process, however many jobs it runs (DP-7).
create or replace function open_lease(holder text, ttl interval default '30 s', name text default 'worker',
                                      for_tenant text default null, token uuid default null,
                                      kinds text[] default null, queues text[] default null,
                                      slots integer default null, version text default null)
returns table (lease uuid, until timestamptz)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_id    uuid := coalesce(open_lease.token, uuid7());
    v_scope text := enter(open_lease.for_tenant);
begin
    perform share_when_needed();
    return query
    insert into lease as l (id, tenant, name, holder, until, opened_at, renewed_at, kinds, queues, slots,
                            version)
    values (v_id, v_scope, open_lease.name, open_lease.holder, v_now + open_lease.ttl, v_now, v_now, open_lease.kinds,
            open_lease.queues, open_lease.slots, open_lease.version)
    returning l.id, l.until;
end $$;

-- Renew a lease. Null: it has ended, and its jobs belong to other workers. 'drain' or 'stop': an operator asked the worker
-- to end (request_stop); 'kept' otherwise.
create or replace function heartbeat(lease uuid, ttl interval default '30 s', for_tenant text default null)
returns text
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(heartbeat.for_tenant);
    v_request text;
begin
    -- A clock that was set back leaves an end that is too far away.
    update lease l set until = case when l.renewed_at > v_now + interval '5 s' then v_now + heartbeat.ttl
                                    else greatest(l.until, v_now + heartbeat.ttl) end, renewed_at = v_now,
           renewals = l.renewals + 1
     where l.id = heartbeat.lease and l.ended_at is null and l.tenant = v_scope
    returning coalesce(l.stop_request, 'kept') into v_request;
    return v_request;
end $$;

-- False: the lease has ended, and its jobs belong to other workers: stop.
create or replace function renew_lease(lease uuid, ttl interval default '30 s', for_tenant text default null)
returns boolean
language sql security definer set search_path from current as $$
    select heartbeat(renew_lease.lease, renew_lease.ttl, renew_lease.for_tenant) is not null;
$$;

-- Ask a worker to end: 'drain' lets its running jobs finish, 'stop' gives them its grace period. The worker reads the
-- request with its next heartbeat. `worker` is the holder of its lease. A later request replaces an earlier one.
create or replace function request_stop(worker text, mode text default 'drain', for_tenant text default null, actor text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(request_stop.for_tenant, request_stop.actor);
begin
    update lease l set stop_request = request_stop.mode, stop_requested_at = v_now, stop_requested_by = actor()
     where l.holder = request_stop.worker and l.ended_at is null and l.until > v_now and (v_scope = '*' or l.tenant = v_scope);
    return found;
end $$;

-- A worker that leaves says so: what it still holds is free at the next sweep, without waiting for the lease to lapse.
create or replace function end_lease(lease uuid, why text default 'closed', for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(end_lease.for_tenant);
begin
    update lease l set ended_at = v_now, ended_why = end_lease.why
     where l.id = end_lease.lease and l.ended_at is null and l.tenant = v_scope;
    return found;
end $$;

-- How often a job was taken from under this lease. A worker compares it with what it last saw, and only then asks which.
create or replace function recalls(lease uuid, for_tenant text default null) returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(recalls.for_tenant);
begin
    return (select coalesce((select r.times from recall r where r.lease = l.id), 0) from lease l
             where l.id = recalls.lease and l.tenant = v_scope);
end $$;

create or replace function holdings(lease uuid, for_tenant text default null)
returns table (id uuid, attempt integer, begun boolean)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
begin
    perform act_under(holdings.lease, holdings.for_tenant);
    return query select s.id, s.attempt, s.state = 'in_progress' from job_state s
     where s.lease = holdings.lease and s.state in ('leased', 'in_progress');
end $$;

-- Somebody waits for a job to end: have it told, for that long.
create or replace function watch_job(job uuid, seconds double precision, for_tenant text default null) returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(watch_job.for_tenant);
begin
    insert into watch as w (job_id, tenant, until)
    select j.id, j.tenant, clock_timestamp() + make_interval(secs => least(greatest(watch_job.seconds, 0), 3600))
      from job j where j.id = watch_job.job and (v_scope = '*' or j.tenant = v_scope)
    on conflict (job_id) do update set until = greatest(w.until, excluded.until)
     where w.until < excluded.until;
end $$;

-- Who may open a lease and take jobs: the labels on the list of executors; while the list is empty, everybody or nobody, as
-- the deployment's policy says.
create or replace function executes(p_label text) returns boolean language sql stable
begin atomic
    select not exists (select from executor) and not (select d.listed_only from dispatch d)
        or exists (select from executor e where e.label = p_label and e.role = 'executor');
end;

create or replace function refuse_executor(p_label text) returns void language plpgsql set search_path from current as $$
begin
    raise exception 'executor % %', p_label,
        case when exists (select from executor e where e.label = p_label) then 'is a generator, which plans work and does not execute it'
             else 'is not on the list of those that may execute' end
        using errcode = 'ZH041', hint = 'add_executor(label) puts one on the list.';
end $$;

create or replace function judge_lease() returns trigger language plpgsql set search_path from current as $$
begin
    if not executes(new.name) then
        perform refuse_executor(new.name);
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert or update of name on lease for each row execute function judge_lease();
