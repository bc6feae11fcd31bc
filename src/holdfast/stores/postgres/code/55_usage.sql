-- Usage (HK-5): the ledger counted in commit order into sums that outlive it. The sums and the place up to which was counted
-- are written in one transaction, and one counts at a time: each event is counted once, whoever dies.
create or replace function count_usage(want integer default 2000, begin_now boolean default false)
returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_was    text;
    v_next   text;
    v_count  integer;
begin
    perform enter('*');   -- there is one place for the events of all
    if count_usage.begin_now then
        insert into usage_place (cursor, updated_at) values (null, clock_now()) on conflict do nothing;
    end if;
    select u.cursor into v_was from usage_place u for update skip locked;
    if not found then
        return 0;
    end if;
    with page as materialized (
        select e.* from events_after(v_was, count_usage.want, '*') e
    ), told as (
        select p.tenant, (in_time(p.at) at time zone 'utc')::date as day, p.kind,
               p.verb = 'enqueue' as enqueued, p.to_state = 'in_progress' as started, p.to_state = 'succeeded' as succeeded,
               p.verb = 'fail' as failed, p.from_state = 'in_progress' and p.verb in ('lapse', 'crash') as crashed,
               p.verb = 'bury' as dead, p.verb = 'cancel' as cancelled,
               p.to_state = 'failed' and p.verb in ('expire', 'deny') as expired,
               case when p.from_state = 'in_progress' then (
                   select extract(epoch from in_time(p.at) - in_time(b.at)) * 1000000 from event b
                    where b.job_id = p.job_id and b.seq < p.seq and b.to_state = 'in_progress' order by b.seq desc limit 1) end as run_time,
               -- From when it could have been taken: asked for, and due by then.
               case when p.to_state = 'in_progress' then (
                   select extract(epoch from in_time(p.at) - in_time(greatest(q.at,
                              case q.verb when 'enqueue' then (select j.process_after from job j where j.id = p.job_id)
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
          from told t group by 1, 2, 3
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
