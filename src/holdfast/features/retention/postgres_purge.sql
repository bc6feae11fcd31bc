-- Whether every reader of application events has read this one.
create or replace function read_by_all(p_tenant text, p_xid bigint) returns boolean
language sql stable set search_path from current as $$
    select not exists (select from (
               select c.tenant, c.cursor from consumer c where c.cursor like 'a%'
               union all select s.tenant, coalesce(s.cursor, 'a') from subscription s where s.pattern not like 'job.%') r
        where r.tenant in (p_tenant, '*')
          and pg_visible_in_snapshot(p_xid::text::xid8, nullif(split_part(r.cursor, ';', 2), '')::pg_snapshot) is not true)
$$;

-- Record the deletion of expired rows, one action per batch (see `ends` in stores/action_triggers.py).
create or replace function note_pruned(p_subject text, p_rows integer) returns integer
language plpgsql set search_path from current as $$
begin
    if p_rows > 0 then
        perform note_action('*', 'prune', p_subject, '*', jsonb_build_object('rows', p_rows));
    end if;
    return p_rows;
end $$;

-- Delete expired bookkeeping. Kept for a week: ended leases, the tokens of decided approvals, and expired sessions. For a
-- month: webhook deliveries, fired times and event deliveries. For ninety days: ended reservations, bulk operations and API
-- tokens. For a year: application events, and groups of dead letters without open ones. Each is found by its own index, a few
-- rows at a time; the tables without such an index hold only operators' settings.
create or replace function prune_bookkeeping(p_want integer, p_now timestamptz) returns integer
language plpgsql set search_path from current as $$
declare
    v_week  timestamptz := p_now - interval '7 days';
    v_month timestamptz := p_now - interval '30 days';
    v_old   timestamptz := p_now - interval '90 days';
    v_year  timestamptz := p_now - interval '365 days';
    v_total integer := 0;
    v_count integer;
    v_row   record;
begin
    -- As arrays: the rows are looked up by key, and the planner cannot join the other way round.
    delete from lease l where l.id = any (array(
        select o.id from lease o where o.id < id_since(v_week) and o.swept_at <= v_week order by o.id limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, v_count);

    delete from approval_token t where t.hash = any (array(
        select o.hash from approval_token o
         where (select g.decided_at from approval g where g.id = o.approval_id) <= v_week limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, note_pruned('approval_token', v_count));

    -- A token is deleted after the last of its sessions, which refer to it.
    delete from api_token t where t.id = any (array(
        select o.id from api_token o
         where least(o.revoked_at, o.expires_at) <= case when o.parent_id is null then v_old else v_week end
           and not exists (select from api_token s where s.parent_id = o.id)
         order by o.id limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, note_pruned('token', v_count));

    delete from reservation r where r.id = any (array(
        select o.id from reservation o where o.ended_at <= v_old order by o.id limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, note_pruned('reservation', v_count));

    delete from operation r where r.id = any (array(
        select o.id from operation o
         where o.id < id_since(v_old) and o.finished_at <= v_old order by o.id limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, note_pruned('operation', v_count));

    -- Files that could not be deleted: they are in no known store, or a process deleted them and died before recording it.
    v_count := 0;
    for v_row in select l.tenant, l.ref from orphaned_file l where l.at <= v_old order by l.again_at limit p_want for update skip locked loop
        delete from orphaned_file l where l.tenant = v_row.tenant and l.ref = v_row.ref;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    delete from webhook_delivery d where d.id = any (array(
        select o.id from webhook p, lateral (
            select e.id from webhook_delivery e where e.webhook_id = p.id and e.id < id_since(v_month) and e.at <= v_month
             order by e.id limit p_want) o limit p_want));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, v_count);

    v_count := 0;
    for v_row in select g.tenant, g.fingerprint from dead_letter_group g where g.open = 0 and g.last_at <= v_year
                  order by g.tenant, g.last_at limit p_want for update skip locked loop
        delete from dead_letter_group g where g.tenant = v_row.tenant and g.fingerprint = v_row.fingerprint;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    -- Never the latest time of a schedule, whatever its age: it shows that the schedule ran at all.
    v_count := 0;
    for v_row in select o.schedule_id, o.due_at, o.manual from schedule s, lateral (
            select f.* from fire f
             where f.schedule_id = s.id and f.due_at <= v_old and f.status <> 'waiting' and (f.status <> 'fired' or f.ended)
               and f.due_at < s.last_fire_at
             order by f.due_at limit p_want) o limit p_want loop
        delete from fire f where f.schedule_id = v_row.schedule_id and f.due_at = v_row.due_at and f.manual = v_row.manual;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    -- Includes deleted subscriptions: their ids are found in the index, one step each.
    v_count := 0;
    for v_row in
        with recursive s(id) as (
            (select d.subscription_id from delivery d order by d.subscription_id limit 1)
            union all
            select (select d.subscription_id from delivery d where d.subscription_id > s.id order by d.subscription_id limit 1)
              from s where s.id is not null)
        select o.subscription_id, o.event from s, lateral (
            select d.* from delivery d where d.subscription_id = s.id and d.at <= v_old order by d.at limit p_want) o limit p_want loop
        delete from delivery d where d.subscription_id = v_row.subscription_id and d.event = v_row.event;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    -- Only what every reader of them has read.
    delete from app_event e where e.id = any (array(
        select o.id from app_event o
         where o.id < id_since(v_year) and o.sent_at <= v_year
           and read_by_all(o.tenant, o.xid)
         order by o.id limit p_want));
    get diagnostics v_count = row_count;
    return greatest(v_total, v_count);
end $$;

-- Files that jobs leave in the artifact store and on hosts. The database cannot delete there, so it records what to delete in
-- the transaction that cleans the job; a process that can reach the files deletes them and then the record. If that process
-- dies in between, the record stays, and deleting twice is harmless. A file that a job still refers to is never returned: a
-- retry as a new job shares the payload of the first attempt.

create or replace function still_named(p_job uuid, p_ref text) returns boolean
language sql stable set search_path from current as $$
    with recursive tries(id) as (
        select p_job
        union
        select j.id from tries t join job j on j.retry_of = t.id where j.retry_of is not null)
    select exists (select from tries t join job j on j.id = t.id where position(p_ref in j.payload::text) > 0)
        or exists (select from replaced_payload r where r.job_id = p_job and position(p_ref in r.payload::text) > 0)
        or exists (select from result r where r.job_id = p_job and (r.ref = p_ref or position(p_ref in r.value::text) > 0))
        or exists (select from artifact a where a.job_id = p_job and a.ref = p_ref)
        or exists (select from attempt_log l where l.job_id = p_job and (l.ref = p_ref or starts_with(l.ref, p_ref) and p_ref like 'file://%'))
        or exists (select from checkpoint c where c.job_id = p_job and c.value -> '$holdfast' ->> 'stored' = p_ref)
        or exists (select from step t where t.job_id = p_job and t.value -> '$holdfast' ->> 'stored' = p_ref)
        or exists (select from archive a where a.id = p_job)
$$;

-- Called before these jobs are cleaned. A file that belongs to another job is left to that job.
create or replace function orphan_files(p_jobs uuid[], p_now timestamptz) returns void
language sql set search_path from current as $$
    insert into orphaned_file (tenant, ref, job_id, at, again_at)
    select j.tenant, f.ref, j.id, p_now, p_now
      from job j, lateral (
           select j.payload -> '$holdfast' ->> 'stored' as ref where j.payload::text like '{"$holdfast":%'
           union select r.payload -> '$holdfast' ->> 'stored' from replaced_payload r where r.job_id = j.id
           union select r.ref from result r where r.job_id = j.id
           union select r.value -> '$holdfast' ->> 'stored' from result r where r.job_id = j.id and r.value::text like '{"$holdfast":%'
           union select a.ref from artifact a where a.job_id = j.id
           union select l.ref from attempt_log l where l.job_id = j.id and l.ref is not null
           -- The directory of a command job on its host, with all its attempts.
           union select substring(o.ref from '^file://.*/' || j.id || '/') from (
                        select l.ref from attempt_log l where l.job_id = j.id and l.ref like 'file://%'
                        union select a.ref from artifact a where a.job_id = j.id and a.ref like 'file://%') o) f
     where j.id = any (p_jobs) and length(f.ref) <= 2000
       and (f.ref like 'artifact://%/' || j.id || '/%' or f.ref like 'file://%/' || j.id || '/')
    on conflict do nothing
$$;

-- Return files to delete now that the caller can reach: in the artifact store if it has one (`stored`), and directories on its
-- host. After an hour any host may try, since several hosts may share a directory and hosts change their names. A returned
-- file is not returned to anyone else for ten minutes or more, the older the longer; then it is returned again unless
-- forget_orphans has removed it.
create or replace function orphans(want integer default 100, for_tenant text default '*', host text default null,
                                     stored boolean default true) returns table (tenant text, job_id uuid, ref text)
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(orphans.for_tenant);
begin
    if halted() then
        return;
    end if;
    return query
    with due as (
        select l.tenant, l.ref from orphaned_file l where l.again_at <= v_now and (v_scope = '*' or l.tenant = v_scope)
           and case when l.ref like 'artifact://%' then orphans.stored
                    else orphans.host is not null
                         and (starts_with(l.ref, 'file://' || orphans.host || '/') or l.at <= v_now - interval '1 hour') end
         order by l.again_at limit orphans.want for update skip locked),
    taken as (
        update orphaned_file l set again_at = v_now + greatest(interval '10 minutes', (v_now - l.at) / 4) from due d where (l.tenant, l.ref) = (d.tenant, d.ref)
        returning l.tenant, l.ref, l.job_id)
    select t.tenant, t.job_id, t.ref from taken t where not still_named(t.job_id, t.ref);
end $$;

-- Remove the records of files that have been deleted.
create or replace function forget_orphans(refs text[], for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(forget_orphans.for_tenant);
    v_count integer;
begin
    delete from orphaned_file l where l.ref = any (forget_orphans.refs) and (v_scope = '*' or l.tenant = v_scope);
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Of the files found in the artifact store, record those that belong to no job or to a cleaned one. Files younger than a week
-- are skipped: they may have been stored for a job that is just being created. Files of no job are deleted after an hour: one
-- of them may be an archive that is just being recorded.
create or replace function find_orphans(tenants text[], jobs uuid[], refs text[], for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(find_orphans.for_tenant);
    v_count integer;
begin
    insert into orphaned_file (tenant, ref, job_id, at, again_at)
    select f.tenant, f.ref, f.job_id, v_now,
           v_now + case when exists (select from job j where j.id = f.job_id) then interval '0' else interval '1 hour' end
      from unnest(find_orphans.tenants, find_orphans.jobs, find_orphans.refs) f(tenant, job_id, ref)
     where (v_scope = '*' or f.tenant = v_scope) and f.job_id < id_since(v_now - interval '7 days')
       and not exists (select from job_state s where s.id = f.job_id and s.state <> 'cleaned')
       and not exists (select from archive a where a.id = f.job_id)
    on conflict do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Count ledger events in commit order into usage sums that outlive them. The sums and the cursor are written in one
-- transaction, and only one caller counts at a time, so each event is counted once even if a process dies.
create or replace function count_usage(want integer default 2000, begin_now boolean default false) returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_was    text;
    v_next   text;
    v_count  integer;
begin
    perform enter('*');   -- one cursor for the events of all tenants
    if count_usage.begin_now then
        insert into usage_place (cursor, updated_at) values (null, clock_now()) on conflict do nothing;
    end if;
    select u.cursor into v_was from usage_place u for update skip locked;
    if not found then
        return 0;
    end if;
    with page as materialized (
        select e.* from events_after(v_was, count_usage.want, '*') e
    ), counted as (
        select p.tenant, (in_time(p.at) at time zone 'utc')::date as day, p.kind,
               p.type = 'enqueue' as enqueued, p.to_state = 'in_progress' as started, p.to_state = 'succeeded' as succeeded,
               p.type = 'fail' as failed, p.from_state = 'in_progress' and p.type in ('lease_expired', 'crash') as crashed,
               p.type = 'dead_letter' as dead, p.type = 'cancel' as cancelled,
               p.to_state = 'failed' and p.type in ('expire', 'deny') as expired,
               case when p.from_state = 'in_progress' then (
                   select extract(epoch from in_time(p.at) - in_time(b.at)) * 1000000 from event b
                    where b.job_id = p.job_id and b.seq < p.seq and b.to_state = 'in_progress' order by b.seq desc limit 1) end as run_time,
               -- From the moment it could have been claimed: enqueued, and due.
               case when p.to_state = 'in_progress' then (
                   select extract(epoch from in_time(p.at) - in_time(greatest(q.at,
                              case q.type when 'enqueue' then (select j.run_at from job j where j.id = p.job_id)
                                          when 'reschedule' then case when q.meta ->> 'rescheduled' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$'
                                               then (q.meta ->> 'rescheduled')::timestamptz end end))) * 1000000
                     from event q where q.job_id = p.job_id and q.seq < p.seq and q.to_state = 'queued' order by q.seq desc limit 1) end
                   as wait_time,
               case when p.from_state = 'in_progress' and jsonb_typeof(p.meta -> 'cost') = 'number'
                    then least((p.meta ->> 'cost')::numeric, 1e9) * 1000000 end as cost
          from page p
    ), added as (
        insert into usage as u (tenant, day, kind, enqueued, started, succeeded, failed, crashed, dead, cancelled, expired,
                                run_time, wait_time, cost)
        select t.tenant, t.day, t.kind, count(*) filter (where t.enqueued), count(*) filter (where t.started),
               count(*) filter (where t.succeeded), count(*) filter (where t.failed), count(*) filter (where t.crashed),
               count(*) filter (where t.dead), count(*) filter (where t.cancelled), count(*) filter (where t.expired),
               coalesce(sum(greatest(t.run_time, 0))::bigint, 0), coalesce(sum(greatest(t.wait_time, 0))::bigint, 0),
               coalesce(sum(greatest(t.cost, 0))::bigint, 0)
          from counted t group by 1, 2, 3
        on conflict (tenant, day, kind) do update
           set enqueued = u.enqueued + excluded.enqueued, started = u.started + excluded.started,
               succeeded = u.succeeded + excluded.succeeded, failed = u.failed + excluded.failed,
               crashed = u.crashed + excluded.crashed, dead = u.dead + excluded.dead,
               cancelled = u.cancelled + excluded.cancelled, expired = u.expired + excluded.expired,
               run_time = u.run_time + excluded.run_time, wait_time = u.wait_time + excluded.wait_time, cost = u.cost + excluded.cost
        returning 1
    )
    select count(*), (array_agg(p.next_cursor order by p.seq desc))[1] into v_count, v_next from page p;
    if v_count > 0 then
        update usage_place u set cursor = v_next, updated_at = clock_now();
    end if;
    return v_count;
end $$;
