-- Pauses. A pause is a limit of zero with a reason. While a whole queue or everything is paused, nothing is claimed there
-- (reservations_on_claim) and no job has to be parked. The jobs of a paused kind, agent or tenant are parked when a claim
-- reaches them (pauses_on_claim), so that the next claims skip them, and requeued when the pause ends. Claims check none of
-- this while `dispatch.limited` is false, and enqueues while `dispatch.ruled` is false; a row in this table sets both,
-- whichever way it was written.
--
-- While everything of every tenant is paused, the system is off: maintenance tasks do nothing either. Running jobs may finish.

-- Tenants whose jobs of a queue may not be claimed because the queue, or everything, is reserved. A pause counts where it
-- stops the whole queue; the jobs of single kinds, agents and tenants are parked (pauses_on_claim). Called by pick_admitted.
create or replace function reservations_on_claim(p_queue text, p_now timestamptz) returns text[]
language plpgsql stable set search_path from current as $$
begin
    return (select array_agg(b.tenant) from (
        select r.tenant from reservation r
         where r.state = 'active' and r.expires_at > p_now
           and (r.scope = 'all' or r.scope = 'queue' and r.name = p_queue)
        union all
        select w.tenant from pause w
         where w.tenant in ('*', (select scope())) and (w.until is null or w.until > p_now)
           and (w.scope = 'all' or w.scope = 'queue' and w.name = p_queue)) b);
end $$;

-- Park the paused jobs among the rows that a claim has picked and locked, together with those at the head of the queue. Many
-- at once, since there may be a million of them with other kinds behind. Returns how many. Called by pick_admitted.
create or replace function pauses_on_claim(p_rows tid[], p_queue text, p_now timestamptz) returns integer
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_pause record;
    v_count  integer := 0;
    v_more   integer;
begin
    for v_pause in
        select w.*, bucket(w.tenant, w.scope, w.name) as held from pause w
         where (w.until is null or w.until > p_now) and (w.scope <> 'queue' or w.name = p_queue)
    loop
        continue when not exists (select from job_state s where s.ctid = any (p_rows)
            and s.due_at is null and v_pause.tenant in ('*', s.tenant)
            and case v_pause.scope when 'kind' then s.kind = v_pause.name when 'agent' then s.agent = v_pause.name else true end);
        update job_state s set due_at = 'infinity', note = jsonb_build_object('held', 'limit', 'by', v_pause.held), held_by = v_pause.held
         where (s.ctid = any (p_rows) or s.ctid = any (array(
                   select h.ctid from job_state h
                    where h.queue = p_queue and h.state = 'queued' and h.due_at is null
                    order by h.priority desc, h.position, h.id limit 1000 for update skip locked)))
           and s.due_at is null and v_pause.tenant in ('*', s.tenant)
           and case v_pause.scope when 'kind' then s.kind = v_pause.name when 'agent' then s.agent = v_pause.name else true end;
        get diagnostics v_more = row_count;
        v_count := v_count + v_more;
    end loop;
    return v_count;
end $$;

-- Message for a pause; the same text as in features/limits/model.py.
create or replace function pause_message(w pause) returns text language sql stable
return concat(case (w).scope when 'all' then 'everything' else (w).scope || ' ' || (w).name end,
              case when (w).tenant <> '*' then ' of tenant ' || (w).tenant end,
              ' was paused by ', (w).set_by, ' at ', to_char((w).since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
              case when (w).until is not null
                   then ' until ' || to_char((w).until at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') end,
              ': ', (w).reason);

create or replace function refuse_paused(p_kind text, w pause) returns void language plpgsql set search_path from current as $$
begin
    raise exception 'jobs of kind % are refused: %', p_kind, pause_message(w)
        using errcode = 'ZH060', hint = 'Enqueue it later, or end the pause: select resume(…).';
end $$;

-- Refuse new jobs while their queue, kind, agent or everything is paused with `refuse_enqueue`. Jobs that the store itself
-- creates when an attempt ends are accepted: retries, and notices of approvals. Called by on_job_insert.
create or replace function pauses_on_insert(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_bad    record;
    v_pause pause;
begin
    select j.kind, w into v_bad from job j join pause w
        on w.refuse_enqueue and (w.until is null or w.until > p_now) and w.tenant in (j.tenant, '*')
       and case w.scope when 'all' then true when 'queue' then w.name = j.queue when 'kind' then w.name = j.kind
                        else w.name = j.agent end
     where j.id = any (p_jobs) and not is_owed(j.id, j.retry_of) limit 1;
    if found then
        v_pause := v_bad.w;
        perform refuse_paused(v_bad.kind, v_pause);
    end if;
end $$;

-- Pause a queue, kind, agent, tenant or everything, or update an existing pause. When the call returns, every later claim
-- observes the pause. It waits for claims in progress, but only briefly: a pause may be urgent, and a transaction may stay
-- open for long.
create or replace function pause(scope text, name text, reason text, until timestamptz default null,
                                 refuse_enqueue boolean default null, actor text default null, for_tenant text default null)
returns setof pause language plpgsql security definer set search_path from current set lock_timeout = '3s' as $$
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
    insert into pause as w (tenant, scope, name, reason, refuse_enqueue, set_by, since, until)
    values (v_scope, pause.scope, pause.name, pause.reason,
            coalesce(pause.refuse_enqueue, v_scope = '*' and pause.scope = 'all'), actor(), v_now, pause.until)
    on conflict (tenant, scope, name) do update
       set reason = excluded.reason, refuse_enqueue = excluded.refuse_enqueue, set_by = excluded.set_by, until = excluded.until;
    return query select w.* from pause w where w.tenant = v_scope and w.scope = pause.scope and w.name = pause.name;
end $$;

-- End a pause. Returns false if there was none. Requeues up to a thousand parked jobs; the maintenance task of limits requeues
-- the rest.
create or replace function resume(scope text, name text default '*', actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(resume.for_tenant, resume.actor);
    v_one   pause;
begin
    delete from pause w where w.tenant = v_scope and w.scope = resume.scope and w.name = resume.name returning w.* into v_one;
    if not found then
        return false;
    end if;
    perform after_pause(v_one, clock_now());
    return v_one.until is null or v_one.until > clock_now();   -- otherwise it had already ended
end $$;

-- Jobs may be claimed there again.
create or replace function after_pause(w pause, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
begin
    perform unpark((w).tenant, (w).scope, (w).name, p_now);
    perform notify_listeners(case (w).scope when 'queue' then (w).name else '' end);
end $$;

-- Delete pauses that have ended; they have had no effect since. Returns how many.
create or replace function end_pauses(p_now timestamptz) returns integer language plpgsql set search_path from current as $$
declare
    v_one   pause;
    v_count integer := 0;
begin
    for v_one in
        select w.* from pause w where w.until <= p_now and (scope() = '*' or w.tenant = scope())
         order by w.tenant, w.scope, w.name for update skip locked
    loop
        delete from pause w where w.tenant = v_one.tenant and w.scope = v_one.scope and w.name = v_one.name;
        perform after_pause(v_one, p_now);
        v_count := v_count + 1;
    end loop;
    return v_count;
end $$;

create or replace function on_pause() returns trigger language plpgsql set search_path from current as $$
begin
    update dispatch d set limited = true, ruled = true where not d.limited or not d.ruled;
    return null;
end $$;
create or replace trigger on_insert after insert on pause for each statement execute function on_pause();

-- Reservations: exclusive use of a queue, a resource or everything while no job is started there.
--
-- A new reservation is `waiting`. The first in line becomes `active` when no conflicting reservation is active. From then on
-- no job is claimed in its scope (pick_admitted calls reservations_on_claim; a resource is a limit of zero). Jobs claimed
-- earlier are counted until they have ended; the owner decides whether to wait for them. The owner renews the reservation. One
-- that is not renewed has expired for everyone from that moment on, whether or not a maintenance task has recorded it. The
-- order of the queue does not change.

create or replace function conflicting(a reservation, b reservation) returns boolean language sql immutable
return (a).id <> (b).id and ((a).tenant = (b).tenant or '*' in ((a).tenant, (b).tenant))
   and ('all' in ((a).scope, (b).scope) or (a).scope = (b).scope and (a).name = (b).name);

-- Number of running jobs in the scope of a reservation.
create or replace function running_in(r reservation) returns integer language sql stable set search_path from current as $$
    select count(*)::integer from job_state s
     where s.state in ('leased', 'in_progress') and ((r).tenant = '*' or s.tenant = (r).tenant)
       and case (r).scope when 'all' then true when 'queue' then s.queue = (r).name
                else exists (select from job j where j.id = s.id and 'resource:' || (r).name = any (j.uses)) end
$$;

-- Request a reservation, or renew it with the same id. Renewing also keeps its position in line for `ttl`.
create or replace function reserve(reservation uuid, scope text, name text default '*', ttl interval default '30 s',
                                   reason text default null, actor text default null, for_tenant text default null)
returns table (id uuid, state text, expires_at timestamptz, running integer, ahead integer)
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(reserve.for_tenant, reserve.actor);
    v_own   reservation;
begin
    perform check_span('ttl', reserve.ttl, '100 ms', '1 hour');
    insert into reservation as r (id, tenant, scope, name, holder, reason, asked_at, expires_at)
    values (reserve.reservation, v_scope, reserve.scope, reserve.name, actor(), nullif(reserve.reason, ''), v_now, v_now + reserve.ttl)
    on conflict (id) do update set expires_at = greatest(r.expires_at, excluded.expires_at)
     where r.state in ('waiting', 'active') and r.expires_at > v_now and r.tenant = v_scope;
    -- The lease of a recorded run outlives the reservation, whose end closes it.
    update lease l set until = greatest(l.until, v_now + reserve.ttl + interval '1 hour'),
           renewed_at = case when l.renewed_at > v_now + interval '5 s' then v_now else greatest(l.renewed_at, v_now) end,
           renewals = l.renewals + 1
      from reservation r join job_state s on s.id = r.job_id
     where r.id = reserve.reservation and r.tenant = v_scope and r.state = 'active' and r.expires_at > v_now
       and l.id = s.lease and l.ended_at is null;
    select r.* into v_own from reservation r where r.id = reserve.reservation and r.tenant = v_scope;
    if v_own.state = 'waiting' and v_own.expires_at > v_now and not exists (
           select from reservation r where conflicting(v_own, r) and r.expires_at > v_now
              and (r.state = 'active' or r.state = 'waiting' and (r.asked_at, r.id) < (v_own.asked_at, v_own.id))) then
        -- All claims in progress have ended, and later ones see the reservation. The rows read above may have changed
        -- meanwhile.
        perform stop_dispatch();
        perform expire_reservations(v_now);
        update reservation r set state = 'active', reserved_at = v_now, expires_at = v_now + reserve.ttl
         where r.id = v_own.id and r.state = 'waiting' and not exists (
               select from reservation o where conflicting(v_own, o) and o.expires_at > v_now
                  and (o.state = 'active' or o.state = 'waiting' and (o.asked_at, o.id) < (v_own.asked_at, v_own.id)));
        update dispatch d set limited = true where not d.limited;
        select r.* into v_own from reservation r where r.id = v_own.id;
    end if;
    return query
    select v_own.id, case when v_own.state in ('waiting', 'active') and v_own.expires_at <= v_now then 'expired' else v_own.state end,
           v_own.expires_at, running_in(v_own),
           (select count(*)::integer from reservation r where conflicting(v_own, r) and r.expires_at > v_now
               and (r.state = 'active' or r.state = 'waiting' and (r.asked_at, r.id) < (v_own.asked_at, v_own.id)));
end $$;

-- End a reservation, or withdraw one that is still waiting. Returns false if it has already ended.
create or replace function release_reservation(reservation uuid, why text default 'released', actor text default null,
                                               for_tenant text default null, outcome text default null,
                                               error_code text default null, error_message text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(release_reservation.for_tenant, release_reservation.actor);
    v_own   reservation;
begin
    update reservation r
       set state = case when r.state = 'waiting' then 'withdrawn' when r.expires_at <= v_now then 'expired' else 'released' end,
           ended_at = v_now, ended_by = actor(),
           ended_why = case when r.state = 'active' and r.expires_at <= v_now then 'expired' else release_reservation.why end
     where r.id = release_reservation.reservation and r.state in ('waiting', 'active') and (v_scope = '*' or r.tenant = v_scope)
    returning r.* into v_own;
    if not found then
        return false;
    end if;
    perform after_reservation(v_own, v_now);
    perform end_recorded(v_own, case when v_own.state = 'expired' then 'lost' else coalesce(release_reservation.outcome, 'stopped') end,
                         release_reservation.error_code, release_reservation.error_message, v_now);
    return v_own.state <> 'expired';
end $$;

-- Jobs may be claimed there again.
create or replace function after_reservation(r reservation, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
begin
    if (r).scope = 'resource' then
        perform unpark((r).tenant, 'resource', (r).name, p_now);
    else
        perform notify_listeners(case (r).scope when 'queue' then (r).name else '' end);
    end if;
end $$;

-- Record the reservations that have expired because they were not renewed. Returns how many.
create or replace function expire_reservations(p_now timestamptz) returns integer
language plpgsql set search_path from current as $$
declare
    v_one   reservation;
    v_count integer := 0;
begin
    for v_one in
        select r.* from reservation r where r.state in ('waiting', 'active') and r.expires_at <= p_now
           and (scope() = '*' or r.tenant = scope())
         order by r.id for update skip locked
    loop
        update reservation r
           set state = case r.state when 'waiting' then 'withdrawn' else 'expired' end, ended_at = p_now, ended_by = actor(),
               ended_why = 'the reservation was not renewed'
         where r.id = v_one.id;
        perform after_reservation(v_one, p_now);
        perform end_recorded(v_one, 'lost', null, null, p_now);
        v_count := v_count + 1;
    end loop;
    return v_count;
end $$;

-- --- work of a reservation's owner, recorded as a job ---
--
-- The job is enqueued and started in one transaction, under its own lease, so no worker ever sees it in a queue. It ends with
-- the reservation: as the owner reports, or as crashed when the reservation was not renewed.

-- Record that the owner of a reservation starts work of this kind, and return the job. Null: the reservation is not active.
create or replace function record_reservation(reservation uuid, kind text, actor text default null, for_tenant text default null)
returns uuid language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(record_reservation.for_tenant, record_reservation.actor);
    v_own   reservation;
    v_job   uuid := uuid7();
    v_lease uuid := gen_random_uuid();
begin
    select r.* into v_own from reservation r where r.id = record_reservation.reservation and r.tenant = v_scope for update;
    if v_own.state is distinct from 'active' or v_own.expires_at <= v_now then
        return null;
    elsif v_own.job_id is not null then
        return v_own.job_id;
    elsif v_scope = '*' then
        raise exception 'a recorded run needs one tenant, not every tenant' using errcode = 'ZH010';
    end if;
    insert into lease (id, tenant, name, holder, until, opened_at, renewed_at)
    values (v_lease, v_scope, 'reservation', actor(), v_own.expires_at + interval '1 hour', v_now, v_now);
    insert into job (id, tenant, kind, queue, payload, max_attempts, max_crashes, external_ref, enqueued_by, source_system, created_at)
    values (v_job, v_scope, record_reservation.kind, 'reservation',
            json_build_object('reservation', v_own.id, 'scope', v_own.scope, 'name', v_own.name), 1, 0,
            'reservation/' || v_own.id, actor(), 'reservation', v_now);
    update job_state s set state = 'in_progress', lease = v_lease, attempt = s.attempt + 1, started_at = v_now, note = null
     where s.id = v_job;
    update reservation r set job_id = v_job where r.id = v_own.id;
    return v_job;
end $$;

create or replace function end_recorded(r reservation, p_outcome text, p_code text, p_message text, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare v_run record;
begin
    if (r).job_id is null then
        return;
    end if;
    select s.id, s.lease, s.attempt into v_run from job_state s where s.id = (r).job_id and s.state = 'in_progress' for update;
    if not found then
        return;   -- an operator has cancelled it
    end if;
    if p_outcome = 'lost' then
        update lease l set ended_at = p_now, ended_why = 'expired' where l.id = v_run.lease and l.ended_at is null;
        update job_state s set state = 'failed', lease = null, finished_at = p_now, note = null, crashes = s.crashes + 1,
               error_code = 'worker_lost', error_message = 'the holder of the reservation stopped renewing it'
         where s.id = v_run.id;
    else
        perform settle_under(v_run.lease, array[v_run.id], array[v_run.attempt],
            array[case p_outcome when 'succeeded' then 'succeeded' else 'fail' end],
            array[case p_outcome when 'succeeded' then '{}' else json_build_object(
                'code', coalesce(p_code, case p_outcome when 'failed' then 'failed' else 'reservation_released' end),
                'message', coalesce(p_message, 'the reservation was released by ' || actor())) end]::json[], p_now);
        update lease l set ended_at = p_now, ended_why = 'released' where l.id = v_run.lease and l.ended_at is null;
    end if;
end $$;

-- The request, the owner and the end of a reservation never change.
create or replace function guard_reservation() returns trigger language plpgsql as $$
begin
    if old.ended_at is not null then
        raise exception 'reservation %: it has ended and cannot change', old.id using errcode = 'ZH002';
    elsif old.state = 'active' and new.state in ('waiting', 'withdrawn') or old.state = 'waiting' and new.state in ('released', 'expired') then
        raise exception 'reservation %: illegal transition % -> %', old.id, old.state, new.state using errcode = 'ZH001';
    end if;
    raise exception 'reservation %: the request cannot change', old.id using errcode = 'ZH002';
end $$;
create or replace trigger guard_update before update on reservation for each row
    when (old.ended_at is not null
          or old.state = 'active' and new.state in ('waiting', 'withdrawn') or old.state = 'waiting' and new.state in ('released', 'expired')
          or old.id <> new.id or old.tenant <> new.tenant or old.scope <> new.scope or old.name <> new.name
          or old.holder <> new.holder or old.asked_at <> new.asked_at
          or old.state = 'active' and old.reserved_at is distinct from new.reserved_at
          or old.job_id is distinct from new.job_id and old.job_id is not null)
    execute function guard_reservation();
