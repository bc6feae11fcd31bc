-- Pausing (DP-18). A switch is a limit of none, with a reason: of a whole queue or of everything nothing is taken
-- (barred_from), and nobody needs to be parked; the jobs of a kind, an agent or a tenant are parked as a claim comes by
-- them (park_paused), so that the next claims do not, and are un-parked when it ends. Nothing of this is looked at while
-- `dispatch` says that nothing is limited, and nothing at enqueue while it says that nothing is ruled; having a row
-- here sets both, whoever has written it.
--
-- While everything of every tenant is paused the system is off: the duties touch nothing either. What runs may end.

create or replace function halted() returns boolean
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
begin
    return exists (select from switch w where w.tenant = '*' and w.scope = 'all' and w.name = '*'
                      and (w.until is null or w.until > clock_now()));
end $$;

-- Whether what is counted together here is paused as a whole.
create or replace function paused(p_tenant text, p_scope text, p_name text, p_now timestamptz) returns boolean
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
begin
    return exists (select from switch w where w.tenant = p_tenant and w.scope = p_scope and w.name = p_name
                      and (w.until is null or w.until > p_now));
end $$;

-- Of the rows that a turn has picked and locked, those that are paused are parked, and with them what else is at the head
-- of the queue: many at once, since there may be a million of them, and other kinds behind. Answers how many.
create or replace function park_paused(p_rows tid[], p_queue text, p_now timestamptz) returns integer
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_switch record;
    v_count  integer := 0;
    v_more   integer;
begin
    for v_switch in
        select w.*, bucket(w.tenant, w.scope, w.name) as held from switch w
         where (w.until is null or w.until > p_now) and (w.scope <> 'queue' or w.name = p_queue)
    loop
        continue when not exists (select from job_state s where s.ctid = any (p_rows)
            and s.due_at is null and v_switch.tenant in ('*', s.tenant)
            and case v_switch.scope when 'kind' then s.kind = v_switch.name when 'agent' then s.agent = v_switch.name else true end);
        update job_state s set due_at = 'infinity', note = jsonb_build_object('held', 'limit', 'by', v_switch.held), held_by = v_switch.held
         where (s.ctid = any (p_rows) or s.ctid = any (array(
                   select h.ctid from job_state h
                    where h.queue = p_queue and h.state = 'queued' and h.due_at is null
                    order by h.priority desc, h.position, h.id limit 1000 for update skip locked)))
           and s.due_at is null and v_switch.tenant in ('*', s.tenant)
           and case v_switch.scope when 'kind' then s.kind = v_switch.name when 'agent' then s.agent = v_switch.name else true end;
        get diagnostics v_more = row_count;
        v_count := v_count + v_more;
    end loop;
    return v_count;
end $$;

-- What is said of a switch; the words of features/limits/model.py.
create or replace function switch_says(w switch) returns text language sql stable
return concat(case (w).scope when 'all' then 'everything' else (w).scope || ' ' || (w).name end,
              case when (w).tenant <> '*' then ' of tenant ' || (w).tenant end,
              ' was paused by ', (w).set_by, ' at ', to_char((w).since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
              case when (w).until is not null
                   then ' until ' || to_char((w).until at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') end,
              ': ', (w).reason);

create or replace function refuse_paused(p_kind text, w switch) returns void
language plpgsql set search_path from current as $$
begin
    raise exception 'no job of kind % is accepted: %', p_kind, switch_says(w)
        using errcode = 'ZH060', hint = 'Enqueue it later, or resume what is paused: select resume(…).';
end $$;

-- Pause, or say something else of what is paused already. When this has answered, whoever takes jobs sees it. Those who
-- began before are waited for, but not for long: a pause may be urgent, and a transaction somewhere may stay open.
create or replace function pause(scope text, name text, reason text, until timestamptz default null,
                                 refuse_enqueue boolean default null, actor text default null, for_tenant text default null)
returns setof switch
language plpgsql security definer set search_path from current set lock_timeout = '3s' as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(pause.for_tenant, pause.actor);
begin
    if out_of_time(pause.until) then
        perform refuse_time('until');
    end if;
    begin
        perform stop_dispatch();
    exception when lock_not_available then
        null;
    end;
    insert into switch as w (tenant, scope, name, reason, refuse_enqueue, set_by, since, until)
    values (v_scope, pause.scope, pause.name, pause.reason,
            coalesce(pause.refuse_enqueue, v_scope = '*' and pause.scope = 'all'), actor(), v_now, pause.until)
    on conflict (tenant, scope, name) do update
       set reason = excluded.reason, refuse_enqueue = excluded.refuse_enqueue, set_by = excluded.set_by, until = excluded.until;
    return query select w.* from switch w where w.tenant = v_scope and w.scope = pause.scope and w.name = pause.name;
end $$;

-- Go on; false when it is not paused. Up to a thousand parked jobs come back with this, the rest by the duty of limits.
create or replace function resume(scope text, name text default '*', actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(resume.for_tenant, resume.actor);
    v_one   switch;
begin
    delete from switch w where w.tenant = v_scope and w.scope = resume.scope and w.name = resume.name returning w.* into v_one;
    if not found then
        return false;
    end if;
    perform after_switch(v_one, clock_now());
    return v_one.until is null or v_one.until > clock_now();   -- else it was over already
end $$;

-- Jobs may be taken there again.
create or replace function after_switch(w switch, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
begin
    perform unpark((w).tenant, (w).scope, (w).name, p_now);
    perform rouse(case (w).scope when 'queue' then (w).name else '' end);
end $$;

-- Take away those whose time is over; nobody has heeded them since. Answers how many.
create or replace function end_switches(p_now timestamptz) returns integer
language plpgsql set search_path from current as $$
declare
    v_one   switch;
    v_count integer := 0;
begin
    for v_one in
        select w.* from switch w where w.until <= p_now and (scope() = '*' or w.tenant = scope())
         order by w.tenant, w.scope, w.name for update skip locked
    loop
        delete from switch w where w.tenant = v_one.tenant and w.scope = v_one.scope and w.name = v_one.name;
        perform after_switch(v_one, p_now);
        v_count := v_count + 1;
    end loop;
    return v_count;
end $$;

create or replace function on_switch() returns trigger language plpgsql set search_path from current as $$
begin
    update dispatch d set limited = true, ruled = true where not d.limited or not d.ruled;
    return null;
end $$;
create or replace trigger on_insert after insert on switch for each statement execute function on_switch();

create or replace function judge_switch() returns trigger language plpgsql as $$
begin
    raise exception 'switch %: what is paused, and since when, never changes', old.name
        using errcode = 'ZH002', hint = 'Resume it, and pause another.';
end $$;
create or replace trigger judge_update before update on switch for each row
    when (old.tenant <> new.tenant or old.scope <> new.scope or old.name <> new.name or old.since <> new.since)
    execute function judge_switch();
create or replace trigger refuse_truncate before truncate on switch for each statement execute function refuse_change();
