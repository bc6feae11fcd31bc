-- Return ledger events in commit order: every event once, and none skipped because its transaction committed late.
--
-- Sequence numbers are taken before commit, so "greater than the last one seen" would skip late commits; waiting for the
-- oldest open transaction would stall behind any long one. Instead the cursor stores the snapshot it has read up to: an event
-- is new if that snapshot does not see its transaction and the current one does. A transaction that builds on another's commit
-- is never seen before it, and within one page `seq` gives the order.
--
--     cursor at rest     floor;snapshot              everything that snapshot sees has been read
--     cursor half-way    floor;snapshot;next;seq     reading from snapshot to next, up to seq
--
-- An event that the snapshot does not see lies above the floor, where the primary key finds it, or was written by a
-- transaction in flight at that time: one in the snapshot's list, or one from its xmax on. (xmax is one more than the last
-- ended transaction, so those from there on may have begun long before.) The index on xid finds these; `seq + 0` keeps the
-- planner from scanning the primary key up to the floor instead.
create or replace function events_after(cursor text default null, want integer default 100, for_tenant text default null)
returns table (seq bigint, job_id uuid, tenant text, kind text, type text, from_state state, to_state state,
               attempt integer, at timestamptz, actor text, meta jsonb, next_cursor text)
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_scope text := enter(for_tenant);
    v_parts text[] := string_to_array(coalesce(events_after.cursor, ''), ';');
    v_floor bigint := coalesce(nullif(v_parts[1], '')::bigint, 0);
    v_past  pg_snapshot := nullif(v_parts[2], '')::pg_snapshot;
    v_next  pg_snapshot := nullif(v_parts[3], '')::pg_snapshot;
    v_seq   bigint := coalesce(nullif(v_parts[4], '')::bigint, 0);
    v_open  bigint[];
    v_above bigint;
    v_last  bigint := 0;
    v_fresh boolean;
begin
    loop
        v_fresh := v_next is null;
        if v_fresh then
            select last_value into v_last from event_seq;
            v_next := ledger_snapshot();
            exit when v_next::text = v_past::text;   -- no transaction has ended since
        end if;
        if v_past is not null then
            select array_agg(x::text::bigint) into v_open from pg_snapshot_xip(v_past) x;
            v_above := pg_snapshot_xmax(v_past)::text::bigint;
        end if;
        return query
        with page as (
            (select e.* from event e
              where e.seq > greatest(v_seq, v_floor)
                and (v_past is null or not pg_visible_in_snapshot(e.xid::text::xid8, v_past))
                and pg_visible_in_snapshot(e.xid::text::xid8, v_next)
                and (v_scope = '*' or e.tenant = v_scope)
              order by e.seq limit events_after.want)
            union all
            (select e.* from event e
              where (e.xid = any (v_open) or e.xid >= v_above) and e.seq + 0 > v_seq and e.seq + 0 <= v_floor
                and pg_visible_in_snapshot(e.xid::text::xid8, v_next)
                and (v_scope = '*' or e.tenant = v_scope)
              order by e.seq + 0 limit events_after.want)
        ), numbered as (
            select p.*, row_number() over (order by p.seq) as n, count(*) over () as total from page p
             order by p.seq limit events_after.want
        )
        select p.seq, p.job_id, p.tenant, p.kind, p.type, p.from_state, p.to_state, p.attempt, p.at, p.actor, p.meta,
               case when p.n = p.total and p.total < events_after.want
                    then greatest(v_floor, p.seq, v_last) || ';' || v_next::text
                    else v_floor || ';' || coalesce(v_past::text, '') || ';' || v_next::text || ';' || p.seq end
          from numbered p order by p.seq;
        exit when found or v_fresh;
        -- The previous page ended exactly at the end of its range: continue with the next range.
        v_floor := greatest(v_floor, v_seq);
        v_past := v_next;
        v_next := null;
        v_seq := 0;
    end loop;
end $$;

-- Return the number of the last event that retention deleted before this cursor had read it, or null. Events purged before the
-- cursor was issued are no gap, and its snapshot tells which. Some events of transactions in flight at that snapshot have
-- numbers below the floor. They would be missed here only if their jobs had ended, been cleaned and been purged without any
-- other event above the floor.
create or replace function events_gone(cursor text, for_tenant text default null) returns bigint
language plpgsql set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_parts text[] := string_to_array(events_gone.cursor, ';');
    v_seen  pg_snapshot := coalesce(nullif(v_parts[3], ''), nullif(v_parts[2], ''))::pg_snapshot;
    v_place bigint := greatest(nullif(v_parts[1], '')::bigint, nullif(v_parts[4], '')::bigint, 0);
begin
    return (
        select max(g.through)
          from (select coalesce((a.changed ->> 'through')::bigint, a.last_seq) as through from action a
                 where a.first_seq is not null and a.last_seq > v_place and (v_scope = '*' or a.tenant = v_scope)
                   and (v_seen is null or not pg_visible_in_snapshot(a.xid::text::xid8, v_seen))) g
         where g.through > v_place);
end $$;

-- Return application events in commit order, as events_after does for the ledger. Cursors begin with an `a`, so that the two
-- kinds cannot be confused.
create or replace function app_events_after(cursor text default null, want integer default 100, for_tenant text default null)
returns table (seq bigint, id uuid, tenant text, name text, data json, job_id uuid, sent_by text, sent_at timestamptz,
               cause_id uuid, next_cursor text)
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_scope text := enter(for_tenant);
    v_parts text[] := string_to_array(substr(coalesce(app_events_after.cursor, 'a'), 2), ';');
    v_floor bigint := coalesce(nullif(v_parts[1], '')::bigint, 0);
    v_past  pg_snapshot := nullif(v_parts[2], '')::pg_snapshot;
    v_next  pg_snapshot := nullif(v_parts[3], '')::pg_snapshot;
    v_seq   bigint := coalesce(nullif(v_parts[4], '')::bigint, 0);
    v_open  bigint[];
    v_above bigint;
    v_last  bigint := 0;
    v_fresh boolean;
begin
    if app_events_after.cursor not like 'a%' then
        raise exception '% is not a cursor of application events', app_events_after.cursor using errcode = 'ZH010';
    end if;
    loop
        v_fresh := v_next is null;
        if v_fresh then
            select last_value into v_last from app_event_seq;
            v_next := ledger_snapshot();
            exit when v_next::text = v_past::text;
        end if;
        if v_past is not null then
            select array_agg(x::text::bigint) into v_open from pg_snapshot_xip(v_past) x;
            v_above := pg_snapshot_xmax(v_past)::text::bigint;
        end if;
        return query
        with page as (
            (select e.* from app_event e
              where e.seq > greatest(v_seq, v_floor)
                and (v_past is null or not pg_visible_in_snapshot(e.xid::text::xid8, v_past))
                and pg_visible_in_snapshot(e.xid::text::xid8, v_next)
                and (v_scope = '*' or e.tenant = v_scope)
              order by e.seq limit app_events_after.want)
            union all
            (select e.* from app_event e
              where (e.xid = any (v_open) or e.xid >= v_above) and e.seq + 0 > v_seq and e.seq + 0 <= v_floor
                and pg_visible_in_snapshot(e.xid::text::xid8, v_next)
                and (v_scope = '*' or e.tenant = v_scope)
              order by e.seq + 0 limit app_events_after.want)
        ), numbered as (
            select p.*, row_number() over (order by p.seq) as n, count(*) over () as total from page p
             order by p.seq limit app_events_after.want
        )
        select p.seq, p.id, p.tenant, p.name, p.data, p.job_id, p.sent_by, p.sent_at, p.cause_id,
               'a' || case when p.n = p.total and p.total < app_events_after.want
                    then greatest(v_floor, p.seq, v_last) || ';' || v_next::text
                    else v_floor || ';' || coalesce(v_past::text, '') || ';' || v_next::text || ';' || p.seq end
          from numbered p order by p.seq;
        exit when found or v_fresh;
        v_floor := greatest(v_floor, v_seq);
        v_past := v_next;
        v_next := null;
        v_seq := 0;
    end loop;
end $$;

-- Save a consumer's cursor. `was` must be the cursor it read last: if two processes read as the same consumer, the second one
-- is refused.
create or replace function save_cursor(consumer text, cursor text, was text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(for_tenant);
begin
    if save_cursor.was is null then
        insert into consumer as c (tenant, name, cursor, updated_at)
        values (v_scope, save_cursor.consumer, save_cursor.cursor, v_now) on conflict do nothing;
    else
        update consumer c set cursor = save_cursor.cursor, updated_at = v_now
         where c.tenant = v_scope and c.name = save_cursor.consumer and c.cursor = save_cursor.was;
    end if;
    return found;
end $$;
