-- Operator actions on jobs. Each takes ids and returns one row per id. Refusals are returned, not raised.

create or replace function check_limit(max_attempts integer) returns void language plpgsql immutable as $$
begin
    if check_limit.max_attempts not between 1 and 101 then
        raise exception 'max_attempts must be from 1 to 101, not %', check_limit.max_attempts using errcode = 'ZH010';
    end if;
end $$;

-- Refuse a duration out of range: the limits of the library (engine/units.py), unless the caller has narrower ones.
create or replace function check_span(p_what text, p_span interval, p_least interval default '0', p_most interval default '36600 days')
returns void language plpgsql immutable as $$
begin
    if p_span not between p_least and p_most then
        raise exception '% is out of range: %', p_what, p_span
            using errcode = 'ZH092', hint = format('Use a duration from %s to %s.', p_least, p_most);
    end if;
end $$;

create or replace function operate(p_action text, p_jobs uuid[], p_reason text, p_actor text, p_tenant text,
                                   p_max_attempts integer default null, p_operation uuid default null)
returns table (id uuid, state state, refused boolean, reason text) language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(p_tenant, p_actor);
    v_note  jsonb := jsonb_strip_nulls(jsonb_build_object('reason', nullif(p_reason, ''),
                                                        'max_attempts', p_max_attempts, 'operation', p_operation));
    v_done  uuid[];
    v_leases uuid[];
begin
    perform check_limit(p_max_attempts);
    select array_agg(h.id) into v_done from (
        select s.id from job_state s
         where s.id = any (p_jobs) and (v_scope = '*' or s.tenant = v_scope)
           and case when p_action = 'cancel'
                    then s.state in ('queued', 'leased', 'in_progress', 'retry_waiting', 'waiting_for_approval')
                    else s.state = 'dead_letter' end
         order by s.id for update) h;
    -- The workers that run them are notified that they no longer hold these jobs.
    with cancelled_under as (
        insert into cancellation as r (lease, times)
        select distinct s.lease, 1 from job_state s where s.id = any (v_done) and s.lease is not null order by 1
        on conflict (lease) do update set times = r.times + 1
        returning r.lease)
    select array_agg(lease) into v_leases from cancelled_under;
    perform notify_listeners(l::text) from unnest(v_leases) l;
    update job_state s
       set state = case p_action when 'redrive' then 'queued' else 'cancelled' end::state,
           lease = null, due_at = null, approval_id = null, note = nullif(v_note, '{}'),
           finished_at = case p_action when 'redrive' then null else v_now end,
           -- A redriven job starts again with its full number of attempts.
           retries = case p_action when 'redrive' then 0 else s.retries end,
           max_attempts = coalesce(p_max_attempts, s.max_attempts),
           crashes = case p_action when 'redrive' then 0 else s.crashes end,
           error_code = case p_action when 'redrive' then null else s.error_code end,
           error_message = case p_action when 'redrive' then null else s.error_message end
     where s.id = any (v_done);
    if p_action = 'redrive' then
        perform notify_listeners(q.queue) from (select distinct s.queue from job_state s where s.id = any (v_done)) q;
    end if;
    return query
    select o.id, s.state, not coalesce(o.id = any (v_done), false),
           case when s.id is null then 'not_found'
                when not coalesce(o.id = any (v_done), false) then
                    case p_action when 'cancel' then 'already_finished' else 'not_dead' end end
      from unnest(p_jobs) with ordinality as o(id, ord)
      left join job_state s on s.id = o.id and (v_scope = '*' or s.tenant = v_scope)
     order by o.ord;
end $$;

-- Cancel jobs that have not ended; the workers of running ones are notified. Returns one row per id: its state, or why it
-- was refused.
create or replace function cancel_many(jobs uuid[], reason text default null, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text) language plpgsql security definer set search_path from current as $$
begin return query select * from operate('cancel', jobs, cancel_many.reason, cancel_many.actor, for_tenant); end $$;

-- Return dead letters to their queues with a full number of attempts. With `at` or `delay` they do not start before that time:
-- both changes are one transaction, so no worker sees a job in between. Returns one row per id: its state, or why it was refused.
create or replace function redrive_many(jobs uuid[], reason text default null, actor text default null,
                                        max_attempts integer default null, for_tenant text default null,
                                        at timestamptz default null, delay interval default null)
returns table (id uuid, state state, refused boolean, refusal text) language plpgsql security definer set search_path from current as $$
declare
    v_row  record;
    v_done uuid[] := '{}';
begin
    perform check_span('delay', redrive_many.delay);
    if out_of_time(redrive_many.at) then
        perform refuse_time('the time');
    end if;
    for v_row in select * from operate('redrive', jobs, redrive_many.reason, redrive_many.actor, for_tenant, redrive_many.max_attempts) loop
        select v_row.id, v_row.state, v_row.refused, v_row.reason into id, state, refused, refusal;
        v_done := v_done || case when not refused then id end;
        return next;
    end loop;
    if redrive_many.at is not null or redrive_many.delay is not null then
        perform from reschedule_many(v_done, redrive_many.at, redrive_many.delay, null, redrive_many.reason, redrive_many.actor, for_tenant);
    end if;
end $$;

-- Discard dead letters for good. Returns one row per id: its state, or why it was refused.
create or replace function discard_many(jobs uuid[], reason text, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text) language plpgsql security definer set search_path from current as $$
begin
    if coalesce(discard_many.reason, '') !~ E'\\S' then
        return query select o.id, null::state, true, 'reason_required' from unnest(jobs) o(id);
    else
        return query select * from operate('discard', jobs, discard_many.reason, discard_many.actor, for_tenant);
    end if;
end $$;

-- Give waiting jobs another start time: `at` a time, after a `delay` by the server's clock, or with neither as soon as
-- possible; and another maximum number of attempts, which may not be below the retries already made. A job that waited for its
-- retry is queued from then on. Either way the ledger records who did it: record_transition reads the note.
create or replace function reschedule_many(jobs uuid[], at timestamptz default null, delay interval default null,
                                           max_attempts integer default null, reason text default null,
                                           actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(reschedule_many.for_tenant, reschedule_many.actor);
    v_due   timestamptz;
    v_note  jsonb;
    v_done  uuid[];
begin
    perform check_span('delay', reschedule_many.delay);
    v_due := coalesce(reschedule_many.at, v_now + reschedule_many.delay, v_now);
    if out_of_time(v_due) then
        perform refuse_time('the time');
    end if;
    perform check_limit(reschedule_many.max_attempts);
    v_due := case when v_due > v_now then v_due end;
    v_note := jsonb_strip_nulls(jsonb_build_object(
        'rescheduled', coalesce(to_char(v_due at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'now'),
        'by', actor(), 'reason', nullif(reschedule_many.reason, ''), 'max_attempts', reschedule_many.max_attempts));
    select array_agg(h.id) into v_done from (
        select s.id from job_state s
         where s.id = any (reschedule_many.jobs) and (v_scope = '*' or s.tenant = v_scope)
           and s.state in ('queued', 'retry_waiting') and s.due_at is distinct from 'infinity'
           and (reschedule_many.max_attempts is null or s.retries < reschedule_many.max_attempts)
         order by s.id for update) h;
    update job_state s
       set state = 'queued', due_at = v_due, note = v_note,
           max_attempts = coalesce(reschedule_many.max_attempts, s.max_attempts)
     where s.id = any (v_done);
    if v_due is null then
        perform notify_listeners(q.queue) from (select distinct s.queue from job_state s where s.id = any (v_done)) q;
    end if;
    return query
    select o.id, s.state, not coalesce(o.id = any (v_done), false),
           case when s.id is null then 'not_found'
                when not coalesce(o.id = any (v_done), false) then
                    case when s.state in ('queued', 'retry_waiting') and s.due_at = 'infinity' then 'job_held'
                         when s.state in ('queued', 'retry_waiting') then 'limit_too_low' else 'not_waiting' end end
      from unnest(reschedule_many.jobs) with ordinality as o(id, ord)
      left join job_state s on s.id = o.id and (v_scope = '*' or s.tenant = v_scope)
     order by o.ord;
end $$;

-- Set the external reference of a job in any state, or remove it with null. The change is recorded as an action.
create or replace function set_external_ref(job uuid, external_ref text, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_external_ref.for_tenant, set_external_ref.actor);
begin
    if set_external_ref.external_ref !~ E'\\S' or length(set_external_ref.external_ref) > 255 then
        raise exception 'an external reference has 1 to 255 characters' using errcode = 'ZH010';
    end if;
    id := set_external_ref.job;
    select s.state into state from job_state s where s.id = set_external_ref.job and (v_scope = '*' or s.tenant = v_scope);
    refused := state is null;
    refusal := case when refused then 'not_found' end;
    update job j set external_ref = set_external_ref.external_ref
     where not refused and j.id = set_external_ref.job and j.external_ref is distinct from set_external_ref.external_ref;
    return next;
end $$;
