-- A database that was restored, replicated or upgraded: what can be told about the copy, and adopting it (docs/adr/0002).

-- Return how many events of a scope a cursor has not read, up to `p_most`. Unlike events_after it works in a copy that was not
-- adopted, where the snapshot of the server means nothing.
create or replace function unread_events(p_cursor text, p_scope text, p_most integer) returns integer
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_parts text[] := string_to_array(ltrim(p_cursor, 'a'), ';');
    v_floor bigint := coalesce(nullif(v_parts[1], '')::bigint, 0);
    v_past  pg_snapshot := nullif(v_parts[2], '')::pg_snapshot;
    v_next  pg_snapshot := nullif(v_parts[3], '')::pg_snapshot;
    v_seq   bigint := coalesce(nullif(v_parts[4], '')::bigint, 0);
    v_open  bigint[] := array(select x::text::bigint from pg_snapshot_xip(v_past) x);
    v_above bigint := pg_snapshot_xmax(v_past)::text::bigint;
begin
    if p_cursor like 'a%' then
        return (select count(*) from (
            select from app_event e
             where (e.seq > v_floor or e.xid = any (v_open) or e.xid >= v_above)
               and (v_past is null or not pg_visible_in_snapshot(e.xid::text::xid8, v_past))
               and (v_next is null or e.seq > v_seq or not pg_visible_in_snapshot(e.xid::text::xid8, v_next))
               and (p_scope = '*' or e.tenant = p_scope) limit p_most) c);
    end if;
    return (select count(*) from (
        select from event e
         where (e.seq > v_floor or e.xid = any (v_open) or e.xid >= v_above)
           and (v_past is null or not pg_visible_in_snapshot(e.xid::text::xid8, v_past))
           and (v_next is null or e.seq > v_seq or not pg_visible_in_snapshot(e.xid::text::xid8, v_next))
           and (p_scope = '*' or e.tenant = p_scope) limit p_most) c);
end $$;

-- Return where this database comes from: `here`, `copied` without the files of its server, or `recovered` from these files by a
-- server that has begun another timeline since, as after a failover; or that the server is a `standby`.
create or replace function origin() returns text language plpgsql stable security definer set search_path from current as $$
declare v_epoch record;
begin
    if pg_is_in_recovery() then
        return 'standby';
    end if;
    select e.anchor = e.xmin::text::bigint and e.place = e.tableoid::bigint as original,
           e.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) as continued
      into v_epoch from ledger_epoch e order by e.number desc limit 1;
    return case when v_epoch.original is not true then 'copied' when v_epoch.continued then 'here' else 'recovered' end;
end $$;

-- The next full billion, with room for as many numbers as a copy may be behind.
create or replace function roomy(p_number bigint) returns bigint language sql immutable
return (p_number / 1000000000 + 2) * 1000000000;

-- Adopt this database, which continues as the original: begin an epoch whose positions and numbers are beyond all that the
-- original may have reached since the copy was made, with room for a trillion transactions and a billion events. So cursors
-- that were read from the original are valid here and miss nothing, and no number means two events. Raises while a program has
-- an open transaction, or while a subscription still replicates into the tables. Returns the number of the epoch.
create or replace function adopt_copy(actor text default null) returns bigint
language plpgsql security definer set search_path from current set lock_timeout = '10s' as $$
declare
    v_scope text := enter('*', adopt_copy.actor);
    v_from  text := origin();
    v_last  ledger_epoch;
    v_epoch ledger_epoch;
    v_top   bigint;
    v_names text;
begin
    perform check_isolation();
    select string_agg(distinct s.subname::text, ', ') into v_names
      from pg_subscription s join pg_subscription_rel r on r.srsubid = s.oid join pg_class c on c.oid = r.srrelid
     where s.subenabled and c.relnamespace = current_schema()::regnamespace;
    if v_names is not null then
        raise exception 'subscription % still writes into this database', v_names using errcode = 'ZH083',
            hint = format('Wait until it has caught up, then: drop subscription %s', v_names);
    end if;
    begin
        lock table event, app_event, action in access exclusive mode;
    exception when lock_not_available or deadlock_detected then
        raise exception 'a program has an open transaction in this database' using errcode = 'ZH083',
            hint = 'Stop workers, servers and other programs, then adopt the copy again.';
    end;
    select e.* into v_last from ledger_epoch e order by e.number desc limit 1;
    -- The newest row of each is near the greatest position; the room covers the rest.
    v_top := greatest(
        v_last.base, pg_current_xact_id()::text::bigint + coalesce(v_last.base, 0),
        (select e.xid from event e order by e.seq desc limit 1),
        (select e.xid from app_event e order by e.seq desc limit 1),
        (select a.xid from action a order by a.seq desc limit 1),
        (select s.xid from seal s order by s.number desc limit 1));
    v_epoch.number := coalesce(v_last.number, -1) + 1;
    v_epoch.base := v_top + (1::bigint << 40);
    -- Logical replication copies rows, but not sequences.
    perform setval('event_seq', roomy(greatest(s.last_value, (select max(e.seq) from event e)))) from event_seq s;
    perform setval('app_event_seq', roomy(greatest(s.last_value, (select max(e.seq) from app_event e)))) from app_event_seq s;
    perform setval('action_seq', roomy(greatest(s.last_value, (select max(a.seq) from action a)))) from action_seq s;
    perform setval('position_seq', greatest(s.last_value, (select max(j.position) / 100 + 1 from job_state j)))
       from position_seq s;
    -- Partitions that were made after the tables of the copy: their events are in `event_rest`.
    delete from event_partition p where to_regclass(p.name) is null;
    update unsure_wait w set bound = null where w.bound is not null;   -- numbers of the other server's transactions
    insert into ledger_epoch (number, base, anchor, place, timeline, first_seq, at, actor)
    select v_epoch.number, v_epoch.base, 0, 'ledger_epoch'::regclass::oid::bigint, left(pg_walfile_name(pg_current_wal_lsn()), 8),
           s.last_value + 1, clock_now(), actor() from event_seq s;
    update ledger_epoch e set anchor = e.xmin::text::bigint where e.number = v_epoch.number;
    -- Cached plans contain the base (ledger_base).
    alter table event alter column xid set default ledger_position();
    alter table app_event alter column xid set default ledger_position();
    alter table action alter column xid set default ledger_position();
    insert into action (tenant, at, actor, type, subject, name, changed)
    values ('*', clock_now(), actor(), 'adopt', 'database', current_database(),
            jsonb_build_object('origin', v_from, 'epoch', v_epoch.number));
    return v_epoch.number;
end $$;
