-- Return the event type of a transition, derived from the row alone, so that hand-written transitions get one too.
create or replace function event_type(was state, now_is state, error_code text, note jsonb) returns text language sql immutable
return case now_is
    when 'in_progress' then case was when 'queued' then 'take' else 'start' end
    when 'succeeded' then 'succeed'
    when 'leased' then 'claim'
    when 'failed' then case was
        when 'in_progress' then case error_code when 'worker_lost' then 'lease_expired' when 'process_died' then 'crash' else 'fail' end
        when 'waiting_for_approval' then case when error_code in ('deadline_passed', 'approval_expired') then 'expire' else 'deny' end
        else 'expire' end
    when 'retry_waiting' then case was when 'failed' then 'retry' when 'retry_waiting' then case when note ? 'moved' then 'move' else 'replace' end else 'snooze' end
    when 'queued' then case was
        when 'leased' then case when note ->> 'reason' = 'lease_expired' then 'lease_expired' else 'release' end
        when 'retry_waiting' then case when note ? 'rescheduled' then 'reschedule' else 'due' end
        when 'queued' then case when note ? 'moved' then 'move' when note ? 'replaced' and not note ? 'rescheduled' then 'replace' else 'reschedule' end
        when 'dead_letter' then 'redrive'
        else case note ->> 'verdict' when 'denied' then 'deny' when 'expired' then 'expire' else 'approve' end end
    when 'dead_letter' then 'dead_letter'
    when 'cancelled' then case was when 'dead_letter' then 'discard' else 'cancel' end
    when 'waiting_for_approval' then 'ask'
    when 'cleaned' then 'clean'
end;

-- Invariants of every row, and the rules for updates of a state row. One expression each, which becomes part of the plan of
-- the statements that write the ledger. The pairs are those of engine/states.py: a test tries every ordered pair.

-- Whether a time is outside of the UTC years 1 to 9999, which every client can represent (engine/times.py).
create or replace function out_of_time(p_time timestamptz) returns boolean language sql immutable
return p_time < '0001-01-01 00:00:00+00' or p_time >= '10000-01-01 00:00:00+00';

-- The nearest time in that range: for sums, which must not fail because of one hand-written event.
create or replace function in_time(p_time timestamptz) returns timestamptz language sql immutable
return case when p_time is not null then least(greatest(p_time, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00') end;

-- Seconds as an interval of at most a hundred years: a malformed number must neither stop its caller nor let anything start
-- early.
create or replace function span(p_seconds double precision) returns interval language sql immutable
return make_interval(secs => case when p_seconds >= 0 and p_seconds < 3162240000 then p_seconds
                                  when p_seconds is not null then 3162240000 end);

create or replace function refuse_time(p_what text) returns void language plpgsql as $$
begin
    raise exception '% is out of range', p_what using errcode = 'ZH090', hint = 'Use a time in the years 1 to 9999, in UTC.';
end $$;

-- Whether JSON is nested more than 100 levels deep, as engine/payload.py counts. Short text, or text with few brackets, is
-- not. Otherwise strings are removed, which leaves the brackets; removing the innermost pairs 100 times leaves what is deeper.
create or replace function too_deep(p_json text) returns boolean language plpgsql immutable as $$
declare v_left text;
begin
    if length(p_json) <= 200 or length(p_json) - length(translate(p_json, '[{', '')) <= 100 then
        return false;
    end if;
    v_left := regexp_replace(p_json, E'"([^"\\\\]|\\\\.)*"', '', 'g');
    v_left := translate(regexp_replace(v_left, '[^][{}]', '', 'g'), '{}', '[]');
    for v_level in 1 .. 100 loop
        v_left := replace(v_left, '[]', '');
        exit when v_left = '';
    end loop;
    return v_left <> '';
end $$;

create or replace function refuse_deep(p_job uuid) returns void language plpgsql as $$
begin
    raise exception 'the payload of job % is nested more than 100 levels deep', p_job
        using errcode = 'ZH091', hint = 'Flatten it, or store it elsewhere and send a reference.';
end $$;

-- The rule that a job's facts break, or null. A name begins with a visible character: the space is character 32.
create or replace function broken_fact(kind text, queue text, tenant text, enqueued_by text, source_system text,
                                       max_attempts smallint, max_crashes smallint, uses text[], retry_as text, depth smallint,
                                       tags text[] default null, run_at timestamptz default null,
                                       deadline_at timestamptz default null, backoff jsonb default null,
                                       executor text default null)
returns text language sql stable   -- stable like array_to_string: otherwise it would be called instead of inlined
return case
    when ascii(kind) <= 32 or length(kind) > 100 then 'kind_named'
    when ascii(queue) <= 32 or length(queue) > 100 then 'queue_named'
    when ascii(tenant) <= 32 or length(tenant) > 100 or tenant = '*' then 'tenant_named'
    when ascii(enqueued_by) <= 32 then 'enqueued_by_named'
    when ascii(source_system) <= 32 then 'source_system_named'
    when max_attempts < 1 or max_attempts > 101 then 'attempts_bounded'
    when max_crashes < 0 or max_crashes > 100 then 'crashes_bounded'
    when uses is not null and (coalesce(cardinality(uses), 0) not between 1 and 20 or array_position(uses, null) is not null
                               or length(array_to_string(uses, '')) > 4000) then 'uses_named'
    when retry_as <> 'new_job' then 'retry_as_known'
    when depth < 1 or depth > 1000 then 'depth_counted'
    when tags <> '{}' and (array_ndims(tags) > 1 or array_position(tags, null) is not null) then 'tags_named'
    when out_of_time(run_at) or out_of_time(deadline_at) then 'time_in_range'
    when jsonb_typeof(backoff) <> 'object' or too_deep(backoff::text) then 'backoff_object'
    when backoff @? 'strict $ ? (exists(@.base ? (@.type() <> "number" || @ < 0 || @ > 2592000)) || exists(@.cap ? (@.type() <> "number" || @ < 0 || @ > 2592000)) || exists(@.factor ? (@.type() <> "number" || @ < 1 || @ > 1000)) || exists(@.head ? (@.type() <> "number" || @ < 0 || @ > 100 || @ <> @.floor())) || exists(@.jitter ? (@.type() <> "boolean")))' then 'backoff_bounded'
    when ascii(executor) <= 32 or length(executor) > 100 or executor = '*' then 'executor_named'
end;

-- Whether one of the first of these rules might be broken; if it is true, broken_fact decides. The server prepares every
-- function of an expression each time, so there are few: the smallest name is compared instead of each one, and limits are
-- combined bit by bit. It is true for a name that begins with * or a character before it, for a name of more than 100 bytes,
-- and for limits that are negative or above 63.
create or replace function odd_fact(kind text, queue text, tenant text, enqueued_by text, source_system text,
                                    max_attempts smallint, max_crashes smallint) returns boolean language sql immutable
return least(kind collate "C", queue, tenant, enqueued_by, source_system) < '+'
    or greatest(octet_length(kind), octet_length(queue), octet_length(tenant)) > 100
    or (max_attempts - 1 | max_crashes) & -64 <> 0;

-- The same for the state row. The most common case comes first, in as few comparisons as possible: it breaks none of the rules
-- below (a test compares the two).
create or replace function broken_state(state state, finished boolean, explained boolean, due boolean, asked boolean,
                                        held boolean, settled boolean, retries smallint, max_attempts smallint,
                                        crashes smallint, max_crashes smallint) returns text language sql immutable
return case
    when case state when 'in_progress' then held and not finished and not settled
                    when 'succeeded' then finished and not held end
         and retries >= 0 and retries < max_attempts and max_attempts <= 101
         and crashes >= 0 and max_crashes >= 0 and max_crashes <= 100 then null
    when finished <> (state in ('succeeded', 'failed', 'dead_letter', 'cancelled', 'cleaned')) then 'finished_iff_terminal'
    when held <> (state in ('leased', 'in_progress')) then 'lease_iff_held'
    when not explained and state in ('failed', 'dead_letter') then 'error_when_failed'
    when not due and state = 'retry_waiting' then 'due_when_retry_waiting'
    when not asked and state = 'waiting_for_approval' then 'approval_when_waiting'
    when held and settled then 'unsettled_while_held'
    when retries < 0 or retries >= max_attempts or max_attempts > 101 then 'retries_within_limit'
    when crashes < 0 or max_crashes < 0 or max_crashes > 100 then 'crashes_counted'
end;

-- Return whether the state machine allows a transition from one state to another.
create or replace function legal(was state, now_is state) returns boolean language sql immutable
return was = now_is or case was
    when null then null   -- {legal pairs}
    else false
end;

-- Whether it counts against its tenant's `max_pending`.
create or replace function pends(p_state state, p_running boolean) returns boolean language sql immutable
return p_state in ('queued', 'retry_waiting') or p_running and p_state in ('leased', 'in_progress');

-- An attempt may be ended by a worker that shows its lease, cancelled by anyone, or declared lost by recovery.
create or replace function unfenced(was state, now_is state, held_by uuid, shown uuid, error_code text)
returns boolean language sql immutable
return was = 'in_progress' and shown is distinct from held_by
    and now_is not in ('in_progress', 'cancelled')
    and (now_is <> 'failed' or error_code is distinct from 'worker_lost');

-- Whether a row is one of the common ones: claimed from its queue under that lease, or settled as succeeded by its holder,
-- with nothing else to record and none of the rules above broken (a test tries what breaks them).
create or replace function plain(wanted state, was state, now_is state, lease uuid, held_by uuid, taken_by uuid, shown uuid,
                                 finished_at timestamptz, more_attempts integer, same boolean, retries smallint,
                                 max_attempts smallint, crashes smallint, max_crashes smallint, odd integer)
returns boolean language sql immutable
return now_is = wanted and same and odd = 0
    and case was when 'queued' then now_is = 'in_progress' and taken_by = lease and shown is null and finished_at is null
                                    and more_attempts = 1
                 when 'in_progress' then now_is = 'succeeded' and shown = held_by and taken_by is null
                                         and finished_at is not null and more_attempts = 0 end
    and retries >= 0 and retries < max_attempts and max_attempts <= 101
    and crashes >= 0 and max_crashes >= 0 and max_crashes <= 100;

-- The numbers of a job's events. The event that records a job's cleaning lists them, and a purge is checked against that list.
create or replace function events_of(p_job uuid) returns text
language sql stable set search_path from current set enable_seqscan = off set jit = off as $$
    select string_agg(e.seq::text, ',' order by e.seq) from event e where e.job_id = p_job
$$;

-- What a job requires of its worker. `job_state.executor` is null, the label that the job names, or character 31 (30 with a
-- fingerprint) and a JSON array: the version of the application, the fingerprint of the code and the label; null is any. A
-- worker is described in the same form. A label begins with a larger character.
create or replace function requirement(version text, code text, executor text) returns text language sql stable
return case when version is null and code is null then executor
            else chr(case when code is null then 31 else 30 end) || jsonb_build_array(version, code, executor)::text end;

-- One part of a requirement: 0 the version, 1 the code, 2 the label. A row that was damaged by hand has a label that no worker has.
create or replace function required(p_executor text, p_part integer) returns text language plpgsql immutable as $$
begin
    if ascii(p_executor) in (30, 31) then
        begin
            return substr(p_executor, 2)::jsonb ->> p_part;
        exception when data_exception then
            null;
        end;
    end if;
    return case p_part when 2 then p_executor end;
end $$;

-- Whether a worker may run a job that requires something.
create or replace function meets(p_worker text, p_required text) returns boolean language sql immutable
return case when ascii(p_required) < 32
    then coalesce(required(p_required, 0) = required(p_worker, 0), required(p_required, 0) is null)
     and coalesce(required(p_required, 1) = required(p_worker, 1), required(p_required, 1) is null)
     and coalesce(required(p_required, 2) = required(p_worker, 2), required(p_required, 2) is null)
    else p_required = required(p_worker, 2) end;

-- The details that an event records besides its type. Inlined into the statement that writes it. Each value is its own
-- argument: passing the whole row would copy every row that is read.
create or replace function event_meta(was state, now_is state, note jsonb, id uuid, error_code text, error_message text,
                                      due_at timestamptz) returns jsonb language sql stable
return case
    when note is null and (now_is = 'in_progress' or now_is = 'succeeded') then null
    when was = now_is and note ? 'moved' then note -> 'moved'
    when was = now_is and note ? 'replaced' and not note ? 'rescheduled' then note -> 'replaced'
    when now_is in ('failed', 'dead_letter') then
        coalesce(note, '{}') || jsonb_build_object('error_code', error_code, 'error_message', error_message)
    when now_is = 'retry_waiting' then
        coalesce(note, '{}') || jsonb_build_object('due_at', to_char(due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
    when now_is = 'cleaned' then coalesce(note, '{}') || jsonb_build_object('events', events_of(id))
    else note end;

-- Raises the error for a refused transition. It never returns; the result type only serves the expression that calls it. Each
-- value is its own argument: passing the whole row would copy every row that is read, refused or not (docs/adr/0025).
create or replace function refuse_transition(id uuid, was state, now_is state, held_by uuid, taken_by uuid, shown uuid,
                                             error_code text, attempts integer, attempt integer, broken text)
returns boolean language plpgsql set search_path from current as $$
#variable_conflict use_variable
begin
    if not legal(was, now_is) then
        raise exception 'job %: illegal transition % -> %', id, was, now_is
            using errcode = 'ZH001', hint = 'See docs/reference/states.md for the allowed transitions.';
    elsif unfenced(was, now_is, held_by, shown, error_code) then
        raise exception 'job %: % -> % needs the lease token of its holder', id, was, now_is
            using errcode = 'ZH003', hint = 'Call the SQL function for this transition with the lease you were given.';
    elsif attempt <> attempts + (case when now_is = 'in_progress' and was <> 'in_progress' then 1 else 0 end) then
        raise exception 'job %: attempt cannot change from % to %', id, attempts, attempt
            using errcode = 'ZH002', hint = 'Only starting a job adds one.';
    elsif taken_by <> held_by then
        raise exception 'job %: a held job cannot move to another lease', id using errcode = 'ZH003';
    elsif was is not null and broken is not null then
        perform refuse_row('job_state', broken);
    end if;
    raise exception 'job %: id, tenant, kind, agent, executor and crash limit, queue and deadline never change', id using errcode = 'ZH002';
end $$;

create or replace function refuse_row(p_table text, p_rule text) returns void language plpgsql as $$
begin
    if p_rule = 'time_in_range' then
        perform refuse_time('run_at or deadline_at');
    end if;
    raise exception 'new row for relation "%" violates "%"', p_table, p_rule
        using errcode = '23514', constraint = p_rule, table = p_table, schema = current_schema();
end $$;

-- --- updates that are not transitions ---
--
-- Nothing that decides how a job runs may change without a ledger row that records it. An update that keeps the state writes
-- one only if a job was moved or rescheduled or its payload replaced. Otherwise a waiting job may be held back or released, as
-- operations do it. A transition has its row, which does not contain the counts: they change as transitions change them, and
-- in no other way.

-- Whether refuse_in_place_change has to check an update.
create or replace function changed_in_place(was state, now_is state, old_note jsonb, new_note jsonb, ranked boolean, placed boolean,
                                 counted boolean, due boolean, started boolean, ended boolean)
returns boolean language sql immutable
return ranked or placed or counted
    or case when was = now_is then due or started or ended or old_note is distinct from new_note
            else started and now_is <> 'in_progress' end;

-- Whether this transaction holds a lock that claims take first (exchange, agents_on_claim).
create or replace function claims_under(p_lock regclass) returns boolean language sql volatile
return exists (select from pg_locks l where l.locktype = 'relation' and l.relation = p_lock and l.mode = 'RowShareLock'
                  and l.granted and l.pid = pg_backend_pid());

-- Whether a limit, pause or reservation exists that may hold back this job, under the name in `held_by`. A pause or
-- reservation may end while a claim parks jobs for it: the next maintenance run requeues those.
create or replace function limit_holds(new job_state) returns boolean language plpgsql as $$
declare
    v_tenant text;
    v_scope  text;
    v_name   text;
begin
    if new.held_by !~ E'^\\[".+","[a-z]+",".+"\\]$' then
        return false;
    end if;
    v_tenant := new.held_by::json ->> 0;
    v_scope := new.held_by::json ->> 1;
    v_name := new.held_by::json ->> 2;
    return coalesce(new.held_by = bucket(v_tenant, v_scope, v_name) and v_tenant in ('*', new.tenant)
        and case v_scope when 'all' then v_name = '*' when 'queue' then v_name = new.queue when 'kind' then v_name = new.kind
                         when 'tenant' then v_name = new.tenant when 'agent' then v_name = new.agent
                         else v_scope || ':' || v_name = any ((select j.uses from job j where j.id = new.id)::text[]) end
        and (exists (select from job_limit l where l.tenant = v_tenant and l.scope = v_scope and l.name in (v_name, '*'))
             or exists (select from pause w where w.tenant = v_tenant and w.scope = v_scope and w.name = v_name)
             or v_scope = 'resource' and exists (select from reservation r where r.tenant = v_tenant and r.scope = v_scope
                                                    and r.name = v_name and r.state = 'active')
             or claims_under('lock_dispatch')), false);
end $$;

-- Whether a job that keeps its state is held back or released as operations do it, or has the note of a recorded change.
-- Only the trigger that advances a workflow (trigger depth 2) holds jobs for their parents and releases them.
create or replace function held_as_usual(old job_state, new job_state, p_now timestamptz) returns boolean language plpgsql as $$
declare
    v_old jsonb := coalesce(old.note, '{}');
    v_new jsonb := coalesce(new.note, '{}');
begin
    if new.state = 'failed' then
        -- Retried as a new job.
        return old.due_at is not distinct from new.due_at and old.held_by is not distinct from new.held_by
           and v_new ? 'retried_as' and v_new - 'retried_as' = '{}' and not v_old ? 'retried_as'
           and exists (select from job j where j.id = new.id and j.retry_as = 'new_job');
    elsif new.state not in ('queued', 'retry_waiting') then
        return false;
    elsif new.held_by is not distinct from old.held_by and new.due_at is not distinct from old.due_at
          and (v_new ? 'moved' and v_new -> 'moved' is distinct from v_old -> 'moved' and v_new - 'moved' = v_old - 'moved'
               or v_new ? 'replaced' and v_new -> 'replaced' is distinct from v_old -> 'replaced'
                  and v_new - 'replaced' = v_old - array['moved', 'rescheduled', 'replaced']) then
        return true;
    elsif pg_trigger_depth() > 1 and new.workflow_id is not null
          and (new.due_at = 'infinity' and new.held_by is null and v_new = '{"held": "parents"}'
               or old.due_at = 'infinity' and old.held_by is null and v_old ->> 'held' = 'parents' and v_new = v_old - 'held') then
        return true;
    elsif new.state <> 'queued' then
        return false;
    elsif old.due_at is null and new.due_at = 'infinity' then
        return coalesce(v_new = jsonb_build_object('held', 'limit', 'by', new.held_by) and limit_holds(new), false);
    elsif new.held_by is distinct from old.held_by then
        return coalesce(old.due_at = 'infinity' and new.due_at is null and new.note is null and new.held_by is null, false);
    elsif new.due_at is null then
        return coalesce((old.due_at <= p_now and (new.note is null or v_new = v_old)
                         or v_old ->> 'held' = 'agent_disabled' and old.due_at is not null and new.note is null), false);
    end if;
    return coalesce(old.due_at is null and new.due_at <= p_now + interval '10 min' and v_new = '{"held": "agent_disabled"}'
        and (exists (select from agent a where a.tenant = new.tenant and a.id = new.agent and a.disabled_at is not null)
             or new.agent is not null and claims_under('agent')), false);   -- it was enabled while a claim postponed its jobs
end $$;

create or replace function refuse_in_place_change(old job_state, new job_state, p_moved boolean, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare
    v_same   boolean := new.state = old.state;
    v_moved  boolean := v_same and new.state in ('queued', 'retry_waiting')
                        and coalesce(new.note ? 'moved' and new.note -> 'moved' is distinct from old.note -> 'moved', false);
    -- Recorded as rescheduled. What is held back cannot be: its time is not known.
    v_timed  boolean := new.state = 'queued' and new.held_by is not distinct from old.held_by and coalesce(
                            new.note ? 'rescheduled' and not new.note ?| array['moved', 'held']
                            and new.note is distinct from old.note, false)
                        and coalesce(isfinite(old.due_at), true) and coalesce(isfinite(new.due_at), true);
    v_as_new   boolean := v_same and coalesce(new.note ? 'retried_as', false) and not coalesce(old.note ? 'retried_as', false);
    v_before job_state;
    v_what   text;
begin
    if new.priority <> old.priority and not v_moved then
        v_what := 'priority';
    elsif new.position <> old.position and not p_moved then   -- the neighbours of a moved job make room
        v_what := 'position';
    elsif (new.started_at is distinct from old.started_at) and (v_same or new.state <> 'in_progress') then
        v_what := 'started_at';
    elsif v_same and (old.finished_at, old.settled_by, old.error_code, old.error_message)
                     is distinct from (new.finished_at, new.settled_by, new.error_code, new.error_message) then
        v_what := 'the end of an attempt';
    elsif v_same and new.approval_id is distinct from old.approval_id then
        v_what := 'approval_id';
    elsif v_same and (old.due_at, old.note, old.held_by) is distinct from (new.due_at, new.note, new.held_by) and not v_timed
          and not held_as_usual(old, new, p_now) then
        v_what := case when new.due_at is distinct from old.due_at then 'due_at'
                       when new.held_by is distinct from old.held_by then 'held_by' else 'note' end;
    elsif (new.retries, new.crashes, new.max_attempts) <> (old.retries, old.crashes, old.max_attempts)
          and not (old.state = 'dead_letter' and new.state = 'queued')   -- redriven, with new counts
          and (new.max_attempts <> old.max_attempts and not v_timed
               or new.retries <> old.retries
                  and not (new.retries = old.retries + 1 and old.state = 'failed' and (new.state = 'retry_waiting' or v_as_new))
               or new.crashes <> old.crashes
                  and not (new.crashes = old.crashes + 1
                           and (old.state = 'in_progress' and new.state = 'failed'
                                or old.state = 'failed' and (not v_same or v_as_new)))) then
        -- A retry that is a new job continues the counts of the one before.
        select s.* into v_before from job j join job_state s on s.id = j.retry_of where j.id = new.id;
        if not (v_same and new.state = 'queued' and new.attempt = 0 and coalesce(
               (new.retries, new.crashes, new.max_attempts) = (v_before.retries, v_before.crashes, v_before.max_attempts), false)) then
            v_what := 'retries, crashes or max_attempts';
        end if;
    end if;
    if v_what is not null then
        raise exception 'job %: % cannot change without a recorded transition', new.id, v_what
            using errcode = 'ZH002', hint = 'Use reschedule(…), move(…) or redrive(…), which record the change.';
    end if;
end $$;
