-- Whether everybody who reads what applications tell has read this.
create or replace function heard_by_all(p_tenant text, p_xid bigint) returns boolean
language sql stable set search_path from current as $$
    select not exists (select from (
               select c.tenant, c.cursor from consumer c where c.cursor like 'a%'
               union all select s.tenant, coalesce(s.cursor, 'a') from subscription s where s.pattern not like 'job.%') r
        where r.tenant in (p_tenant, '*')
          and pg_visible_in_snapshot(p_xid::text::xid8, nullif(split_part(r.cursor, ';', 2), '')::pg_snapshot) is not true)
$$;

-- That rows went because they were over long enough, in one line for all of a batch (see `ends` in
-- stores/action_triggers.py).
create or replace function note_pruned(p_subject text, p_rows integer) returns integer
language plpgsql set search_path from current as $$
begin
    if p_rows > 0 then
        perform note_action('*', 'prune', p_subject, '*', jsonb_build_object('rows', p_rows));
    end if;
    return p_rows;
end $$;

-- What is kept only to work with, and for how long: ended leases, the tokens of decided gates and sessions that are over for a
-- week, what became of calls to an endpoint for a month, what became of times and of events, and reservations, bulk operations
-- and API tokens that are over for ninety days, what applications told and groups of dead letters with nothing open for a
-- year. Each is found by its own index, a few at a time; the tables without one hold what people have set.
create or replace function prune_bookkeeping(p_want integer, p_now timestamptz) returns integer
language plpgsql set search_path from current as $$
#variable_conflict use_column
declare
    v_week  timestamptz := p_now - interval '7 days';
    v_month timestamptz := p_now - interval '30 days';
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
    v_total := greatest(v_total, note_pruned('gate_token', v_count));

    -- A token after the last of its sessions: they name it.
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

    -- What nobody could delete: it is not in any store that is known, or was deleted by one who died before saying so.
    v_count := 0;
    for v_row in select l.tenant, l.ref from leftover l where l.at <= v_old order by l.again_at limit p_want for update skip locked loop
        delete from leftover l where l.tenant = v_row.tenant and l.ref = v_row.ref;
        v_count := v_count + 1;
    end loop;
    v_total := greatest(v_total, v_count);

    delete from endpoint_delivery d where d.id = any (array(
        select o.id from endpoint p, lateral (
            select e.id from endpoint_delivery e where e.endpoint_id = p.id and e.id < id_since(v_month) and e.at <= v_month
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

    -- Also of subscriptions that were deleted: their ids are found in the index, one step each.
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

    -- Only what everybody who reads them has read.
    delete from app_event e where e.id = any (array(
        select o.id from app_event o
         where o.id < id_since(v_year) and o.sent_at <= v_year
           and heard_by_all(o.tenant, o.xid)
         order by o.id limit p_want));
    get diagnostics v_count = row_count;
    return greatest(v_total, v_count);
end $$;
