-- Which maintenance tasks have work, in one statement: an idle worker asks this again and again, and nothing else.
--
-- A hint. Each task finds its work itself and claims it row by row; a task that this function does not name is still run
-- now and then. So it may err to both sides: late commits below a ledger position, for example, are left to those runs.
--
-- `leads`: among the workers that are alive, the first asks most often. No write and no lock is needed for that, and nothing
-- depends on it: the others ask as well, only less often, and do whatever they find.
-- `next_in`: seconds until the next known work falls due. `notifies`: whether new jobs are announced in this database.
create or replace function due_work(lease uuid default null, for_tenant text default '*')
returns table (tasks text[], leads boolean, next_in double precision, notifies boolean)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_now();
    v_scope  text := enter(due_work.for_tenant);
    v_opened timestamptz;
    v_times  timestamptz[];
begin
    tasks := '{}';
    notifies := coalesce(current_setting('holdfast.notify', true), '') <> 'off';
    select l.opened_at into v_opened from lease l where l.id = due_work.lease;
    leads := not exists (
        select from lease l
         where l.ended_at is null and l.until > v_now and l.slots is not null and l.tenant = v_scope
           and (v_opened is null or (l.opened_at, l.id) < (v_opened, due_work.lease)));
    if (select d.limited from dispatch d) then
        tasks := tasks || 'limits'::text;   -- also while all is paused: a pause may be over
    end if;
    if halted() then
        return next;
        return;
    end if;
    v_times := array[
        least((select s.due_at from job_state s where s.due_at is not null and s.state in ('queued', 'retry_waiting')
                  and (v_scope = '*' or s.tenant = v_scope) order by s.due_at limit 1),
              -- Promotion also rechecks waits that began while an event was sent.
              (select min(w.check_at) from unsure_wait w where v_scope = '*' or w.tenant = v_scope)),
        (select s.attend_at from schedule s where s.attend_at is not null
            and (v_scope = '*' or s.tenant = v_scope) order by s.attend_at limit 1),
        (select s.deadline_at from job_state s where s.deadline_at is not null
            and s.state in ('queued', 'retry_waiting', 'waiting_for_approval')
            and (v_scope = '*' or s.tenant = v_scope) order by s.deadline_at limit 1),
        (select least(g.expires_at, g.remind_at, g.escalate_at) from gate g where g.state = 'open'
            and (v_scope = '*' or g.tenant = v_scope) order by least(g.expires_at, g.remind_at, g.escalate_at) limit 1)];
    tasks := tasks || array(select t.task from unnest(v_times, array['promote', 'schedules', 'expire', 'gates']) t(at, task)
                             where t.at <= v_now);
    next_in := (select extract(epoch from min(t) - v_now) from unnest(v_times[1:2]) t where t > v_now and t < 'infinity');
    if exists (select from subscription s where s.paused_at is null and (v_scope = '*' or s.tenant = v_scope)) then
        tasks := tasks || 'subscriptions'::text;
    end if;
    if exists (select from operation o where o.state = 'running' and (v_scope = '*' or o.tenant = v_scope)) then
        tasks := tasks || 'operations'::text;
    end if;
    if exists (select from queue_setting) then
        tasks := tasks || 'aging'::text;
    end if;
    if exists (select from lease l where l.ended_at is null and l.until <= v_now and (v_scope = '*' or l.tenant = v_scope))
       or exists (select from lease l where l.ended_at is not null and l.swept_at is null and (v_scope = '*' or l.tenant = v_scope)) then
        tasks := tasks || 'reap'::text;
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
    if exists (select from leftover l where l.again_at <= v_now and (v_scope = '*' or l.tenant = v_scope)) then
        tasks := tasks || 'leftovers'::text;
    end if;
    return next;
end $$;
