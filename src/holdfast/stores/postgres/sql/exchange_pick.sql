-- The slower paths on which an exchange picks jobs: behind a known position, and where a pick has to be admitted.

-- Pick and lock up to `p_want` jobs behind a position, in queue order; without one, from the start of the queue. Two ranges of
-- the index: the rest of that priority, then all lower ones.
create or replace function pick_after(
    p_queue text, p_priority smallint, p_position bigint, p_want integer, p_kinds text[], p_label text, p_scope text,
    p_barred text[], p_quarantined uuid[], p_now timestamptz, out picked tid[], out agented boolean)
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_more tid[];
    v_any  boolean;
begin
    if p_priority is not null then
        select array_agg(p.ctid), bool_or(p.agented) into picked, agented from (
            select s.ctid, s.agent is not null as agented from job_state s
             where s.queue = p_queue and s.state = 'queued' and s.due_at is null
               and s.priority = p_priority and s.position > p_position
               and (s.deadline_at is null or s.deadline_at > p_now)
               and (p_kinds is null or s.kind = any (p_kinds))
               and (s.executor is null or meets(p_label, s.executor))
               and (p_scope = '*' or s.tenant = p_scope)
               and (p_barred is null or s.tenant <> all (p_barred))
               and (p_quarantined is null or s.id <> all (p_quarantined))
             order by s.priority desc, s.position, s.id
             limit p_want for update skip locked) p;
        if cardinality(picked) >= p_want then
            return;
        end if;
    end if;
    select array_agg(p.ctid), bool_or(p.agented) into v_more, v_any from (
        select s.ctid, s.agent is not null as agented from job_state s
         where s.queue = p_queue and s.state = 'queued' and s.due_at is null
           and s.priority < coalesce(p_priority::integer, 32768)   -- larger than any smallint
           and (s.deadline_at is null or s.deadline_at > p_now)
           and (p_kinds is null or s.kind = any (p_kinds))
           and (s.executor is null or meets(p_label, s.executor))
           and (p_scope = '*' or s.tenant = p_scope)
           and (p_barred is null or s.tenant <> all (p_barred))
           and (p_quarantined is null or s.id <> all (p_quarantined))
         order by s.priority desc, s.position, s.id
         limit p_want - coalesce(cardinality(picked), 0) for update skip locked) p;
    picked := picked || v_more;
    agented := coalesce(agented, false) or coalesce(v_any, false);
end $$;

-- Lock the lease that jobs are put under, for the same reasons as exchange on its plain path.
create or replace function lock_lease(p_lease uuid, p_holder text, out live boolean, out may boolean)
language plpgsql set search_path from current as $$
begin
    select executes(l.name) into may from lease l where l.id = p_lease and l.ended_at is null for share;
    live := found;
    if live and may then
        perform set_config('holdfast.actor', p_holder, true);
    end if;
end $$;

-- Pick and lock jobs that limits, pauses, reservations, fair shares and agents admit. The others are parked, and the search
-- starts again, at most eight times. `p_picked` is a first pick that was already made. Returns `live` or `may` as false, and
-- no rows, if the lease has ended or its holder may no longer claim.
create or replace function pick_admitted(
    p_lease uuid, p_holder text, p_queue text, p_priority smallint, p_position bigint, p_want integer, p_kinds text[],
    p_label text, p_scope text, p_quarantined uuid[], p_now timestamptz, p_limited boolean, p_shared boolean, p_picked tid[],
    inout locked boolean, inout first boolean, out picked tid[], out live boolean, out may boolean, out took integer)
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_began    timestamptz;
    v_rows     tid[] := p_picked;
    v_able     tid[];
    v_agented  boolean := p_picked is not null;
    v_admitted tid[] := '{}';
    v_new      tid[];
    v_barred   text[];
    v_paused   boolean := p_limited and exists (select from pause);
    v_most     integer := p_want;
    v_room     integer;
    v_extra    integer := 0;
    v_last     text;      -- the tenant that was served last, and the rest of its share
    v_rest     integer;
    v_mine     boolean;
    v_walked   bigint;
begin
    live := true;
    may := true;
    took := 0;
    if p_limited then
        v_barred := reservations_on_claim(p_queue, p_now);
        if '*' = any (v_barred) or p_scope = any (v_barred) then
            return;
        end if;
        v_room := room_for_queue(p_queue, p_scope, p_now, first);
        v_most := least(p_want, v_room);
        if v_room <= 0 then
            first := false;
            return;
        end if;
    end if;
    if p_shared then
        select f.last, f.left_over, f.mine into v_last, v_rest, v_mine from fair_place_of(p_queue, p_kinds) f;
    end if;
    for v_round in 1 .. 8 loop
        if v_round > 1 or p_picked is null then
            v_began := clock_timestamp();
            if p_shared then
                v_walked := pg_stat_get_xact_tuples_returned(to_regclass('fair'));
                select nullif(f.picked, '{}'), f.agented into v_rows, v_agented
                  from fair_pick(p_queue, v_last, v_rest, v_most + v_extra, p_kinds, p_label, v_barred, p_now) f;
                -- A worker that sees a slow pick starts its next picks behind a position, where tenants do not
                -- alternate. So the time counts only if many rows were scanned, not if the machine was busy.
                if pg_stat_get_xact_tuples_returned(to_regclass('fair')) - v_walked < 1000 + 10 * (v_most + v_extra) then
                    v_began := clock_timestamp();
                end if;
            else
                select p.picked, p.agented into v_rows, v_agented
                  from pick_after(p_queue, p_priority, p_position, v_most + v_extra, p_kinds, p_label, p_scope, v_barred, p_quarantined,
                                  p_now) p;
            end if;
            took := took + extract(microseconds from clock_timestamp() - v_began)::integer;
        end if;
        exit when not coalesce(v_agented, false) and not p_limited;
        v_able := case when v_agented then agents_on_claim(v_rows, p_now) else v_rows end;
        if p_limited then
            continue when v_paused and pauses_on_claim(v_rows, p_queue, p_now) > 0;
            -- Admitted jobs stay admitted and are picked again.
            v_new := array(select r.ctid from unnest(v_rows) with ordinality r(ctid, n)
                            where r.ctid = any (v_able) and not r.ctid = any (v_admitted) order by r.n);
            if v_new <> '{}' and not locked then
                -- As in exchange, but before anything is counted: an admitted job must be claimed.
                select l.live, l.may into live, may from lock_lease(p_lease, p_holder) l;
                if not live or not may then
                    return;
                end if;
                locked := true;
            end if;
            if v_new <> '{}' then
                v_admitted := v_admitted || admit(v_new, p_now, first, v_most - cardinality(v_admitted));
                first := false;
            end if;
            v_able := v_admitted;
            v_extra := 50;   -- a job was skipped, and more of the same may follow
            exit when v_rows is null or cardinality(v_admitted) >= v_most;
        end if;
        exit when cardinality(v_able) = cardinality(v_rows);
        v_rows := nullif(v_able, '{}');
    end loop;
    if p_limited then
        v_rows := nullif(v_admitted, '{}');
        if v_room is not null and cardinality(v_admitted) >= v_room then
            perform wake_queue_later(p_queue, p_now);
        end if;
    end if;
    if v_rows is not null and p_shared and v_mine then
        if not locked then
            select l.live, l.may into live, may from lock_lease(p_lease, p_holder) l;
            if not live or not may then
                return;
            end if;
            locked := true;
        end if;
        perform fair_move(p_queue, p_kinds, v_rows, v_last, v_rest);
    end if;
    picked := v_rows;
end $$;
