-- Whether everybody who reads what applications tell has read this.
create or replace function heard_by_all(p_tenant text, p_xid bigint) returns boolean
language sql stable set search_path from current as $$
    select not exists (select from (
               select c.tenant, c.cursor from consumer c where c.cursor like 'a%'
               union all select s.tenant, coalesce(s.cursor, 'a') from subscription s where s.pattern not like 'job.%') r
        where r.tenant in (p_tenant, '*')
          and pg_visible_in_snapshot(p_xid::text::xid8, nullif(split_part(r.cursor, ';', 2), '')::pg_snapshot) is not true)
$$;

-- What is kept only to work with, and for how long: ended leases and the tokens of decided gates for a week, what became of
-- times and of events for ninety days, what applications told for a year. Each is found by its own index, a few at a time.
create or replace function prune_bookkeeping(p_want integer, p_now timestamptz) returns integer
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    v_week  timestamptz := p_now - interval '7 days';
    v_old   timestamptz := p_now - interval '90 days';
    v_year  timestamptz := p_now - interval '365 days';
    v_total integer := 0;
    v_count integer;
    v_row   record;
begin
    -- As arrays: what is found is looked up by its key, and never joined the other way round.
    delete from lease l where l.id = any (array(
        select o.id from lease o where o.id < id_since(v_week) and o.swept_at <= v_week order by o.id limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, v_count);

    delete from gate_token t where t.hash = any (array(
        select o.hash from gate_token o
         where (select g.decided_at from gate g where g.id = o.gate_id) <= v_week limit p_want for update skip locked));
    get diagnostics v_count = row_count;
    v_total := greatest(v_total, v_count);

    -- Not the latest of a schedule, whatever its age: that it ran at all is worth knowing.
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

    v_count := 0;
    for v_row in select o.subscription_id, o.event from subscription s, lateral (
            select d.* from delivery d where d.subscription_id = s.id and d.at <= v_old order by d.at limit p_want) o limit p_want loop
        delete from delivery d where d.subscription_id = v_row.subscription_id and d.event = v_row.event;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    -- Only what everybody who reads them has read.
    delete from app_event e where e.id = any (array(
        select o.id from app_event o
         where o.id < id_since(v_year) and o.sent_at <= v_year
           and heard_by_all(o.tenant, o.xid)
         order by o.id limit p_want));
    get diagnostics v_count = row_count;
    return greatest(v_total, v_count);
end $$;
