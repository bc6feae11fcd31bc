-- Versions of an application, and jobs that wait for other code.
--
-- A job whose handler made other steps than it had recorded is held: it waits until its limit and requires the code `none`. As
-- soon as a live worker has code that has not been tried (the note lists what has), the job is queued for that code alone. If
-- the worker ends before it has claimed the job, any worker may try. The worker decides from the ledger when the limit is over.

-- Whether a live worker runs this code.
create or replace function code_is_live(p_code text, p_now timestamptz) returns boolean language sql stable
begin atomic
    select exists (select from lease l where l.code = p_code and l.ended_at is null and l.until > p_now);
end;

-- Offer held jobs to workers whose code they have not tried, and jobs that were offered to a worker that has ended to all.
-- Returns how many.
create or replace function offer_held(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now    timestamptz := clock_now();
    v_scope  text := enter(offer_held.for_tenant, 'maintenance');
    v_queues text[];
    v_freed  text[];
    v_count  integer;
begin
    if halted() then
        return 0;
    end if;
    with held as materialized (
        select s.id, f.code from job_state s
         cross join lateral (
            select l.code from lease l
             where l.ended_at is null and l.until > v_now and l.code is not null and l.tenant in (s.tenant, '*')
               and not s.note -> 'mismatch' -> 'tried' ? l.code
               and (l.kinds is null or s.kind = any (l.kinds)) and (l.queues is null or s.queue = any (l.queues))
               and (required(s.executor, 0) is null or l.app_version = required(s.executor, 0))
               and (required(s.executor, 2) is null or l.name = required(s.executor, 2))
             order by l.opened_at desc limit 1) f
         where ascii(s.executor) = 30 and ascii(s.executor) < 32 and s.finished_at is null and s.state = 'retry_waiting'
           and s.note ? 'mismatch' and (v_scope = '*' or s.tenant = v_scope)
           and not exists (select from quarantine q where q.job_id = s.id and q.until > v_now)
         order by s.id limit offer_held.want for update of s skip locked
    ), offered as (
        update job_state s
           set state = 'queued', due_at = null, note = jsonb_build_object('code', h.code),
               executor = requirement(required(s.executor, 0), h.code, required(s.executor, 2))
          from held h where s.id = h.id
        returning s.queue
    )
    select count(*), array_agg(distinct o.queue) into v_count, v_queues from offered o;
    with bound as materialized (
        select s.id from job_state s
         where ascii(s.executor) = 30 and ascii(s.executor) < 32 and s.finished_at is null and s.state = 'queued'
           and (v_scope = '*' or s.tenant = v_scope) and not code_is_live(required(s.executor, 1), v_now)
           and not exists (select from quarantine q where q.job_id = s.id and q.until > v_now)
         order by s.id limit offer_held.want for update skip locked
    ), freed as (
        update job_state s set executor = requirement(required(s.executor, 0), null, required(s.executor, 2))
          from bound b where s.id = b.id
        returning s.queue
    )
    select v_count + count(*), array_agg(distinct f.queue) into v_count, v_freed from freed f;
    perform notify_listeners(q) from unnest(v_queues || v_freed) q;
    return v_count;
end $$;

-- Move unfinished jobs that are pinned to a version to another one: all of them, or these. Returns their ids. Each is recorded
-- as an action on the job.
create or replace function move_version(version text, to_version text, jobs uuid[] default null, reason text default null,
                                        actor text default null, for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_scope text := enter(move_version.for_tenant, move_version.actor);
begin
    if move_version.to_version is null or ascii(move_version.to_version) <= 32 or length(move_version.to_version) > 100 then
        raise exception 'a version has up to 100 characters and begins with a visible one' using errcode = 'ZH010';
    end if;
    return query
    with pinned as materialized (
        select s.id from job_state s
         where ascii(s.executor) in (30, 31) and ascii(s.executor) < 32 and s.finished_at is null
           and required(s.executor, 0) = move_version.version and (v_scope = '*' or s.tenant = v_scope)
           and (move_version.jobs is null or s.id = any (move_version.jobs))
         order by s.id for update
    ), moved as (
        update job_state s
           set executor = requirement(move_version.to_version, case required(s.executor, 1) when 'none' then 'none' end,
                                      required(s.executor, 2))
          from pinned p where s.id = p.id
        returning s.id, s.tenant
    ), noted as materialized (
        select m.id, note_action(m.tenant, 'change', 'job', m.id::text, jsonb_strip_nulls(jsonb_build_object(
                   'version', jsonb_build_array(move_version.version, move_version.to_version), 'reason', move_version.reason)))
          from moved m
    )
    select n.id from noted n;
end $$;

-- The number of running jobs by the version of their workers. Lease tokens may not be read.
create or replace function running_versions(for_tenant text default null) returns table (version text, jobs bigint)
language plpgsql security definer set search_path from current set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare v_scope text := enter(running_versions.for_tenant);
begin
    return query
    select l.app_version, count(*) from job_state s join lease l on l.id = s.lease
     where s.state in ('leased', 'in_progress') and l.app_version is not null and (v_scope = '*' or s.tenant = v_scope)
     group by l.app_version;
end $$;
