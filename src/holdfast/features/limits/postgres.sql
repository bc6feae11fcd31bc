-- Set and list limits, and their maintenance. admission.sql applies limits to claims.

-- Set a limit or replace it, and return its row. Jobs that are running count; if they exceed the new limit, they run to their
-- end.
create or replace function set_limit(scope text, name text default '*', concurrency integer default null, rate integer default null,
                                     per double precision default null, burst integer default null,
                                     actor text default null, for_tenant text default null) returns setof job_limit
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_scope text := enter(set_limit.for_tenant, set_limit.actor);
    v_limit job_limit;
begin
    v_limit.tenant := v_scope;
    v_limit.scope := set_limit.scope;
    v_limit.name := set_limit.name;
    v_limit.concurrency := set_limit.concurrency;
    v_limit.rate := set_limit.rate;
    v_limit.per := set_limit.per;
    v_limit.burst := set_limit.burst;
    return query select * from put_limit(v_limit);
end $$;

-- Store a limit within an operation, signed by its actor, and return its row.
create or replace function put_limit(p_limit job_limit) returns setof job_limit
language plpgsql set search_path from current as $$
declare
    v_now  timestamptz := clock_now();
    v_rows tid[];
begin
    perform stop_dispatch();
    p_limit.per := case when p_limit.rate is not null then coalesce(p_limit.per, 1) end;
    p_limit.burst := case when p_limit.rate is not null then coalesce(p_limit.burst, 1) end;
    p_limit.set_by := actor();
    p_limit.created_at := v_now;
    p_limit.updated_at := v_now;
    insert into job_limit as l select p_limit.*
    on conflict (tenant, scope, name) do update
       set concurrency = excluded.concurrency, rate = excluded.rate, per = excluded.per, burst = excluded.burst,
           set_by = excluded.set_by, updated_at = excluded.updated_at
     where (l.concurrency, l.rate, l.per, l.burst)
           is distinct from (excluded.concurrency, excluded.rate, excluded.per, excluded.burst);
    update dispatch d set limited = true where not d.limited;
    -- Locked: a job that is just ending has not released its slot yet and must not be given one.
    select array_agg(h.ctid) into v_rows from (
        select s.ctid from job_state s where s.state in ('leased', 'in_progress') order by s.id for update) h;
    insert into occupied_slot (tenant, scope, name, job_id)
    select distinct l.tenant, l.scope, l.name, l.job_id from limits_on(v_rows) l
     where l.tenant = p_limit.tenant and l.scope = p_limit.scope and l.concurrency is not null
    on conflict do nothing;
    perform sweep_parked(v_now, 1000, bucket_prefix(p_limit.tenant, p_limit.scope));
    return query select l.* from job_limit l
     where l.tenant = p_limit.tenant and l.scope = p_limit.scope and l.name = p_limit.name;
end $$;

-- Remove a limit and requeue the jobs parked for it. Returns false if it does not exist.
create or replace function remove_limit(scope text, name text default '*', actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare v_scope text := enter(remove_limit.for_tenant, remove_limit.actor);
begin
    perform stop_dispatch();
    delete from job_limit l where l.tenant = v_scope and l.scope = remove_limit.scope and l.name = remove_limit.name;
    if not found then
        return false;
    end if;
    delete from occupied_slot p where p.tenant = v_scope and p.scope = remove_limit.scope
       and not exists (select from job_limit l where l.tenant = p.tenant and l.scope = p.scope and l.name in (p.name, '*')
                          and l.concurrency is not null);
    delete from rate_meter m where m.tenant = v_scope and m.scope = remove_limit.scope
       and not exists (select from job_limit l where l.tenant = m.tenant and l.scope = m.scope and l.name in (m.name, '*')
                          and l.rate is not null);
    perform sweep_parked(clock_now(), 1000, bucket_prefix(v_scope, remove_limit.scope));
    perform notify_listeners('');
    return true;
end $$;

-- Common prefix of the keys of all buckets of a scope.
create or replace function bucket_prefix(p_tenant text, p_scope text) returns text language sql stable
return left(bucket(p_tenant, p_scope, ''), -3);

-- Scan the limits that jobs are parked for, continuing where the last scan ended, and requeue the jobs that fit. Transitions
-- that free slots already do this; the scan covers transitions that missed each other, and limits that were changed.
create or replace function sweep_parked(p_now timestamptz, p_want integer, p_prefix text default null) returns integer
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_from  text := coalesce(p_prefix, (select d.swept from dispatch d), '');
    v_next  text;
    v_limit job_limit;
    v_count integer := 0;
    v_seen  integer := 0;
begin
    loop
        select s.held_by into v_next from job_state s
         where s.held_by > v_from and s.held_by is not null and s.due_at is not null and s.state = 'queued'
         order by s.held_by limit 1;
        exit when v_next is null or (p_prefix is not null and not starts_with(v_next, p_prefix)) or v_seen >= 200 or v_count >= p_want;
        select l.* into v_limit from job_limit l
         where l.tenant = v_next::json ->> 0 and l.scope = v_next::json ->> 1 and l.name in (v_next::json ->> 2, '*')
         order by l.name = '*' limit 1;
        if p_prefix is null and v_limit.rate is not null then
            -- Its jobs are woken when a token is available.
            perform wake_later(v_limit.tenant, v_limit.scope, v_next::json ->> 2, v_limit.rate, v_limit.per, v_limit.burst, p_now);
        else
            v_count := v_count + unpark(v_next::json ->> 0, v_next::json ->> 1, v_next::json ->> 2, p_now, p_want - v_count);
        end if;
        v_from := v_next;
        v_seen := v_seen + 1;
    end loop;
    if p_prefix is null then
        update dispatch d set swept = case when v_next is null then '' else v_from end
         where d.swept <> case when v_next is null then '' else v_from end;
    end if;
    return v_count;
end $$;

-- List the limits with the number of jobs running under each and the number it holds back.
create or replace function list_limits(for_tenant text default null)
returns table (tenant text, scope text, name text, concurrency integer, rate integer, per double precision, burst integer,
               set_by text, created_at timestamptz, updated_at timestamptz, running bigint, waiting bigint)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(list_limits.for_tenant);
begin
    return query
    with parked as materialized (
        select s.held_by, count(*) as n from job_state s
         where s.held_by is not null and s.due_at is not null and s.state = 'queued' and (v_scope = '*' or s.tenant = v_scope)
         group by s.held_by)
    select l.tenant, l.scope, l.name, l.concurrency, l.rate, l.per, l.burst, l.set_by, l.created_at, l.updated_at,
           (select count(*) from occupied_slot p where p.tenant = l.tenant and p.scope = l.scope and l.name in (p.name, '*')),
           coalesce((select sum(k.n)::bigint from parked k where case l.name when '*'
               then starts_with(k.held_by, bucket_prefix(l.tenant, l.scope)) else k.held_by = bucket(l.tenant, l.scope, l.name) end), 0)
      from job_limit l where v_scope = '*' or l.tenant in (v_scope, '*')
     order by array_position(array['all', 'queue', 'kind', 'key', 'resource', 'agent', 'tenant'], l.scope), l.name, l.tenant;
end $$;

-- Requeue jobs that waited for tokens which are now available. Returns how many.
create or replace function grant_tokens(p_now timestamptz, p_want integer) returns integer
language plpgsql set search_path from current as $$
declare
    v_count integer := 0;
    v_freed integer;
    v_meter record;
begin
    for v_meter in
        select m.tenant, m.scope, m.name, l.rate, l.per, l.burst from rate_meter m
          left join lateral (select * from job_limit l where l.tenant = m.tenant and l.scope = m.scope
                                and l.name in (m.name, '*') order by l.name = '*' limit 1) l on true
         where m.wake_at <= p_now and m.wake_at is not null order by m.wake_at limit p_want
           for update of m skip locked
    loop
        update rate_meter m set wake_at = null where m.tenant = v_meter.tenant and m.scope = v_meter.scope and m.name = v_meter.name;
        v_freed := unpark(v_meter.tenant, v_meter.scope, v_meter.name, p_now, p_want);
        v_count := v_count + v_freed;
        if exists (select from job_state s where s.held_by = bucket(v_meter.tenant, v_meter.scope, v_meter.name)
                      and s.held_by is not null and s.due_at is not null and s.state = 'queued') then
            perform wake_later(v_meter.tenant, v_meter.scope, v_meter.name, v_meter.rate, v_meter.per, v_meter.burst,
                               p_now, v_freed);
        end if;
    end loop;
    return v_count;
end $$;

-- Requeue jobs whose rate-limit tokens are available, for a worker that learned the time of the next token from its last
-- exchange. Returns how many.
create or replace function wake_limited(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(wake_limited.for_tenant, 'maintenance');
begin
    if halted() then
        return 0;
    end if;
    return grant_tokens(clock_now(), wake_limited.want);
end $$;

-- Maintain limits and reservations: expire reservations that were not renewed, hand out rate-limit tokens, and requeue parked
-- jobs. Returns how many changed.
create or replace function attend_limits(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(attend_limits.for_tenant, 'maintenance');
    v_count integer := 0;
begin
    if not (select d.limited from dispatch d) then
        return 0;
    end if;
    v_count := end_pauses(v_now);
    if halted() then
        return v_count;
    end if;
    v_count := v_count + expire_reservations(v_now);
    if v_scope = '*' then
        -- Repairs hand-written changes: otherwise a job and its slot come and go in one transaction.
        delete from occupied_slot p where not exists (select from job_state s where s.id = p.job_id and s.lease is not null);
    end if;
    v_count := v_count + grant_tokens(v_now, attend_limits.want);
    v_count := v_count + sweep_parked(v_now, attend_limits.want);
    if v_scope = '*' and not exists (select from job_limit) and not exists (select from reservation r where r.state in ('waiting', 'active'))
       and not exists (select from pause)
       and try_lock('lock_dispatch')
       and not exists (select from job_limit) and not exists (select from reservation r where r.state in ('waiting', 'active'))
       and not exists (select from occupied_slot) and not exists (select from pause)
       and not exists (select from job_state s where s.held_by is not null and s.due_at is not null and s.state = 'queued') then
        update dispatch d set limited = false where d.limited;
    end if;
    return v_count;
end $$;

-- A slot is kept while its job is held and its limit exists: deleting it would admit one job too many.
create or replace function guard_occupied_slot_delete() returns trigger language plpgsql set search_path from current
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
    if pg_trigger_depth() > 1 then
        return null;   -- free_places: these jobs have left their workers
    end if;
    if exists (select from gone g join job_state s on s.id = g.job_id
                where s.state in ('leased', 'in_progress') and s.lease is not null
                  and exists (select from job_limit l where l.tenant = g.tenant and l.scope = g.scope
                                 and l.name in (g.name, '*') and l.concurrency is not null)) then
        raise exception 'occupied_slot: a slot cannot be deleted while its job is held' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger guard_delete after delete on occupied_slot
    referencing old table as gone for each statement execute function guard_occupied_slot_delete();

-- `dispatch.limited` is true while any limit exists. Claims read only this row, so it must exist.
create or replace function guard_dispatch() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_op <> 'UPDATE' then
        raise exception 'dispatch must keep its one row' using errcode = 'ZH002';
    elsif hidden('*', 'job_limit')   -- other tenants' rows are not visible here (tenancy.sql)
          or exists (select from job_limit) or exists (select from reservation r where r.state in ('waiting', 'active'))
          or exists (select from pause) then
        raise exception 'dispatch: limited must stay true while a limit, reservation or pause exists' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on dispatch for each row
    when (old.limited and not new.limited) execute function guard_dispatch();
create or replace trigger refuse_delete before delete on dispatch for each row execute function guard_dispatch();
create or replace trigger refuse_truncate before truncate on dispatch for each statement execute function guard_dispatch();

-- Set the aging of a queue, and return its settings. In such a queue the stored priority of a waiting job rises by `step`
-- every `aging` seconds, up to `most`. Claim order depends only on the stored priority. Queues do not age by default.
create or replace function set_aging(queue text, aging double precision, step integer default 1, most integer default 100,
                                     actor text default null, for_tenant text default null) returns setof queue_setting
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_aging.for_tenant, set_aging.actor);
begin
    if set_aging.aging is null then
        delete from queue_setting q where q.tenant = v_scope and q.queue = set_aging.queue;
        return;
    end if;
    return query
    insert into queue_setting as q (tenant, queue, aging, aging_step, aging_most, set_by, updated_at)
    values (v_scope, set_aging.queue, set_aging.aging, set_aging.step, set_aging.most, actor(), clock_now())
    on conflict (tenant, queue) do update
       set aging = excluded.aging, aging_step = excluded.aging_step, aging_most = excluded.aging_most,
           set_by = excluded.set_by, updated_at = excluded.updated_at
    returning q.*;
end $$;

-- Raise the priority of jobs that have waited long enough, one batch per call. Returns how many. A job's priority is the one
-- it was enqueued with plus one step per aging period spent waiting, up to the queue's maximum. Its position stays, so that
-- among jobs of its new priority the oldest is first. Jobs that an operator moved are not changed. Only the jobs that have
-- waited longest at each priority are considered.
create or replace function age_queues(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(age_queues.for_tenant, 'aging');
    v_setting queue_setting;
    v_level   smallint;
    v_jobs    uuid[];
    v_count   integer := 0;
    v_more    integer;
begin
    if halted() then
        return 0;
    end if;
    for v_setting in
        select q.* from queue_setting q where v_scope = '*' or q.tenant in (v_scope, '*') order by q.tenant, q.queue
    loop
        v_level := v_setting.aging_most;
        loop
            select s.priority into v_level from job_state s
             where s.queue = v_setting.queue and s.state = 'queued' and s.due_at is null and s.priority < v_level
               and (v_scope = '*' or s.tenant = v_scope)
             order by s.priority desc limit 1;
            exit when not found or v_count >= age_queues.want;
            select array_agg(w.id) into v_jobs from (
                select s.id from job_state s
                 where s.queue = v_setting.queue and s.state = 'queued' and s.due_at is null and s.priority = v_level
                   and (v_setting.tenant = '*' or s.tenant = v_setting.tenant) and (v_scope = '*' or s.tenant = v_scope)
                 order by s.priority desc, s.position, s.id limit age_queues.want - v_count for update skip locked) w;
            with old as materialized (
                select w.id, least(v_setting.aging_most, j.priority + v_setting.aging_step
                           * floor(extract(epoch from v_now - greatest(j.created_at, j.run_at)) / v_setting.aging)) as priority
                  from unnest(v_jobs) w(id) join job j on j.id = w.id
                 where not exists (select from event e where e.job_id = w.id and e.type = 'move' and e.actor <> 'aging')
            )
            update job_state s
               set priority = o.priority,
                   note = coalesce(s.note, '{}') || jsonb_build_object('moved', jsonb_build_object(
                       'to', 'aging', 'priority', o.priority,
                       'times', 1 + (select count(*) from event e where e.job_id = s.id and e.type = 'move')))
              from old o where s.id = o.id and o.priority > s.priority;
            get diagnostics v_more = row_count;
            v_count := v_count + v_more;
        end loop;
        if v_count > 0 then
            perform notify_listeners(' ' || v_setting.queue);
        end if;
    end loop;
    return v_count;
end $$;
