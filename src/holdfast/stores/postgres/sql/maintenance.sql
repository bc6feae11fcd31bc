-- Maintenance tasks: any process runs them from time to time, in small batches, safely in parallel. Each returns how many rows
-- it changed. While everything is paused (features/limits/postgres_pauses.sql) they do nothing.

-- Queue jobs that have become due. Returns how many.
create or replace function promote_due(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(promote_due.for_tenant, 'maintenance');
    v_queues text[];
    v_count integer;
begin
    if halted() then
        return 0;
    end if;
    perform share_when_needed();
    with due as materialized (
        select s.id from job_state s
         where s.due_at <= v_now and s.due_at is not null and s.state in ('queued', 'retry_waiting')
           and (v_scope = '*' or s.tenant = v_scope)
           and not exists (select from quarantine q where q.job_id = s.id and q.until > v_now)
         order by s.due_at limit promote_due.want for update skip locked
    ), promoted as (
        update job_state s set state = 'queued', due_at = null, note = null from due where s.id = due.id
        returning s.queue
    )
    select count(*), array_agg(distinct queue) into v_count, v_queues from promoted;
    perform notify_listeners(q) from unnest(v_queues) q;
    if exists (select from unsure_wait w where w.check_at <= v_now) then
        v_count := v_count + recheck_waits(v_scope, v_now, promote_due.want);
    end if;
    return v_count;
end $$;

-- Fail jobs whose deadline passed before they started. Returns how many.
create or replace function expire_overdue(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(expire_overdue.for_tenant, 'maintenance');
    v_count integer;
begin
    if halted() then
        return 0;
    end if;
    with overdue as materialized (
        select s.id from job_state s
         where s.deadline_at <= v_now and s.deadline_at is not null
           and s.state in ('queued', 'leased', 'retry_waiting', 'waiting_for_approval')
           and (v_scope = '*' or s.tenant = v_scope)
           and not exists (select from quarantine q where q.job_id = s.id and q.until > v_now)
         order by s.deadline_at limit expire_overdue.want for update skip locked
    )
    update job_state s
       set state = 'failed', lease = null, due_at = null, approval_id = null, finished_at = v_now, note = null,
           error_code = 'deadline_passed', error_message = 'the deadline passed before the job was done'
      from overdue where s.id = overdue.id;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Take jobs from ended leases: claimed jobs return to the queue at no cost; started ones count as a crash.
create or replace function free_jobs(p_jobs uuid[], p_now timestamptz, out requeued integer, out crashed integer)
language plpgsql set search_path from current set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_as_new uuid[];
begin
    update job_state s set state = 'queued', lease = null, note = '{"reason": "lease_expired"}'
     where s.id = any (p_jobs) and s.state = 'leased';
    get diagnostics requeued = row_count;
    if requeued > 0 then
        perform notify_listeners(q.queue) from (select distinct s.queue from job_state s where s.id = any (p_jobs) and s.state = 'queued') q;
    end if;
    update job_state s
       set state = 'failed', lease = null, finished_at = p_now, note = null,
           error_code = 'worker_lost', error_message = 'the worker that ran this job stopped renewing its lease'
     where s.id = any (p_jobs) and s.state = 'in_progress';
    get diagnostics crashed = row_count;
    if crashed > 0 then
        v_as_new := retry_as_new(array_agg(s.id), array_agg('loss'::text), array_agg(0::float8), p_now) from job_state s
                where s.id = any (p_jobs) and s.state = 'failed' and s.crashes < s.max_crashes;
    end if;
    update job_state s
       set state = case when s.crashes < s.max_crashes then 'retry_waiting' else 'dead_letter' end::state,
           crashes = least(s.crashes, 32766) + 1,
           due_at = case when s.crashes < s.max_crashes then p_now end,
           finished_at = case when s.crashes < s.max_crashes then null else p_now end,
           note = case when s.crashes >= s.max_crashes
                       then jsonb_build_object('fingerprint', fingerprint(s.kind, s.error_code, s.error_message)) end
     where s.id = any (p_jobs) and s.state = 'failed' and (v_as_new is null or s.id <> all (v_as_new));
end $$;

-- End expired leases and free the jobs of ended ones. Claimed jobs return to the queue at no cost; started ones count as a
-- crash and are retried or, past the crash limit, become dead letters. Returns the numbers of ended leases, requeued jobs and
-- crashes, and the new dead letters. A lease is marked as swept when no job refers to it; until then every run processes it
-- again, so a run may die half-way.
create or replace function recover_leases(want integer default 1000, for_tenant text default '*')
returns table (leases integer, requeued integer, crashed integer, dead uuid[])
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(recover_leases.for_tenant, 'recovery');
    v_lost  uuid[];
    v_jobs  uuid[];
begin
    leases := 0;
    requeued := 0;
    crashed := 0;
    dead := '{}';
    if halted() then
        return next;
        return;
    end if;
    -- Renewed in the future: the clock was set back. The lease lasts for its duration from now on; otherwise a dead worker
    -- would be considered alive until the clock reaches that time again.
    update lease l set until = v_now + (l.until - l.renewed_at), renewed_at = v_now
     where l.ended_at is null and l.renewed_at > v_now + interval '5 s' and (v_scope = '*' or l.tenant = v_scope);
    with expired as materialized (
        select l.id from lease l
         where l.ended_at is null and l.until <= v_now and (v_scope = '*' or l.tenant = v_scope)
         order by l.until limit recover_leases.want for update skip locked
    )
    update lease l set ended_at = v_now, ended_why = 'expired' from expired where l.id = expired.id;
    get diagnostics leases = row_count;
    delete from watch w where w.until < clock_timestamp() and (v_scope = '*' or w.tenant = v_scope);

    select array_agg(l.id) into v_lost from (
        select l.id from lease l
         where l.ended_at is not null and l.swept_at is null and (v_scope = '*' or l.tenant = v_scope)
         order by l.ended_at limit recover_leases.want for update skip locked) l;
    if v_lost is null then
        return next;
        return;
    end if;

    select array_agg(h.id) into v_jobs from (
        select s.id from job_state s where s.lease = any (v_lost) and s.state in ('leased', 'in_progress')
           and not exists (select from quarantine q where q.job_id = s.id and q.until > v_now)
         order by s.id limit recover_leases.want for update skip locked) h;
    select f.requeued, f.crashed into requeued, crashed from free_jobs(v_jobs, v_now) f;
    if crashed > 0 then
        dead := array(select s.id from job_state s where s.id = any (v_jobs) and s.state = 'dead_letter' order by s.id);
    end if;

    delete from cancellation r where r.lease = any (v_lost);
    update lease l set swept_at = v_now
     where l.id = any (v_lost) and not exists (select from job_state s where s.lease = l.id and s.state in ('leased', 'in_progress'));
    return next;
end $$;

-- Return the maintenance tasks that have work, in one statement: the only query that an idle worker repeats.
--
-- The result is a hint. Each task finds its work itself and claims it row by row, and a task that is not named here is still
-- run from time to time. So this may err in both directions: late commits below a ledger position, for example, are left to
-- those runs.
--
-- `leads`: the first of the live workers does the work. That needs no write and no lock, and nothing depends on it: the other
-- workers query too, a little later, and do the work they find. `next_in`: seconds until the next known work is due, the end
-- of another worker's lease included. `notifies`: whether new jobs are announced in this database. The task `claim` means that
-- jobs wait in the queues of this lease.
create or replace function due_work(lease uuid default null, for_tenant text default '*')
returns table (tasks text[], leads boolean, next_in double precision, notifies boolean)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_now    timestamptz := clock_now();
    v_scope  text := enter(due_work.for_tenant);
    v_opened timestamptz;
    v_queues text[];
    v_times  timestamptz[];
begin
    tasks := '{}';
    notifies := coalesce(current_setting('holdfast.notify', true), '') <> 'off';
    select l.opened_at, l.queues into v_opened, v_queues from lease l where l.id = due_work.lease;
    leads := not exists (
        select from lease l
         where l.ended_at is null and l.until > v_now and l.slots is not null and l.tenant = v_scope
           and (v_opened is null or (l.opened_at, l.id) < (v_opened, due_work.lease)));
    if (select d.limited from dispatch d) then
        tasks := tasks || 'limits'::text;   -- also while everything is paused: a pause may have ended
    end if;
    if halted() then
        return next;
        return;
    end if;
    v_times := array[
        least((select s.due_at from job_state s where s.due_at is not null and s.state in ('queued', 'retry_waiting')
                  and (v_scope = '*' or s.tenant = v_scope) order by s.due_at limit 1),
              -- Promotion also rechecks waits that began while an event was being sent.
              (select min(w.check_at) from unsure_wait w where v_scope = '*' or w.tenant = v_scope)),
        (select s.attend_at from schedule s where s.attend_at is not null
            and (v_scope = '*' or s.tenant = v_scope) order by s.attend_at limit 1),
        (select s.deadline_at from job_state s where s.deadline_at is not null
            and s.state in ('queued', 'leased', 'retry_waiting', 'waiting_for_approval')
            and (v_scope = '*' or s.tenant = v_scope) order by s.deadline_at limit 1),
        (select least(g.expires_at, g.remind_at, g.escalate_at) from approval g where g.state = 'open'
            and (v_scope = '*' or g.tenant = v_scope) order by least(g.expires_at, g.remind_at, g.escalate_at) limit 1)];
    tasks := tasks || array(select t.task from unnest(v_times, array['promote', 'schedules', 'expire', 'approvals']) t(at, task)
                             where t.at <= v_now);
    if needs_sharing() then
        tasks := tasks || 'promote'::text;   -- the task that does it
    end if;
    -- Jobs of tenants that this worker does not serve would be scanned, so a worker of one tenant claims to find out.
    if v_queues is not null and (v_scope <> '*' or exists (
           select from unnest(v_queues) q, lateral (
               select from job_state s where s.queue = q and s.state = 'queued' and s.due_at is null limit 1) s)) then
        tasks := tasks || 'claim'::text;
    end if;
    next_in := (select extract(epoch from min(t) - v_now) from unnest(v_times || (
                    select min(l.until) from lease l where l.ended_at is null and l.id is distinct from due_work.lease
                       and (v_scope = '*' or l.tenant = v_scope))) t
                 where t > v_now and t < 'infinity');
    if exists (select from subscription s where s.paused_at is null and (v_scope = '*' or s.tenant = v_scope)) then
        tasks := tasks || 'subscriptions'::text;
    end if;
    if exists (select from callback c where c.due_at <= v_now and c.due_at is not null and c.fired_at is null
                  and (v_scope = '*' or c.tenant = v_scope)) then
        tasks := tasks || 'callbacks'::text;
    end if;
    if exists (select from operation o where o.state = 'running' and (v_scope = '*' or o.tenant = v_scope)) then
        tasks := tasks || 'operations'::text;
    end if;
    if exists (select from payload_rule) then
        tasks := tasks || 'rules'::text;   -- workers read them again every few seconds
    end if;
    if exists (select from queue_setting) then
        tasks := tasks || 'aging'::text;
    end if;
    if exists (select from lease l where l.ended_at is null and l.until <= v_now and (v_scope = '*' or l.tenant = v_scope))
       or exists (select from lease l where l.ended_at is not null and l.swept_at is null and (v_scope = '*' or l.tenant = v_scope)) then
        tasks := tasks || 'recover'::text;
    end if;
    if exists (select from job_state s where ascii(s.executor) = 30 and s.finished_at is null
                  and (v_scope = '*' or s.tenant = v_scope)) then
        tasks := tasks || 'held'::text;
    end if;
    if exists (select from event e where e.seq > coalesce((select s.floor from seal s order by s.number desc limit 1), 0))
       or exists (select from action a where a.seq > coalesce((select s.action_floor from seal s order by s.number desc limit 1), 0)) then
        tasks := tasks || 'seal'::text;
    end if;
    if exists (select from upkeep u where u.prune_at <= v_now)
       or exists (select from retention_pass p where p.again_at <= v_now)
       or exists (select from usage_place u where u.cursor is null or u.cursor like '%;%;%'
                     or exists (select from event e where e.seq > split_part(u.cursor, ';', 1)::bigint)) then
        tasks := tasks || 'retention'::text;
    end if;
    if exists (select from orphaned_file l where l.again_at <= v_now and (v_scope = '*' or l.tenant = v_scope)) then
        tasks := tasks || 'orphans'::text;
    end if;
    return next;
end $$;
