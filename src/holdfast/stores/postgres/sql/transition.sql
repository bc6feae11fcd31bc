-- The ledger: one event per transition, in the same transaction, for every writer; and the check of every update of a state
-- row (transition_rules.sql), since both read the same rows. The transition tables are visible only in the trigger function
-- itself, and a trigger per feature would read them again. So there is one trigger: it reads the rows once and calls the hooks
-- that apply (`*_on_transition`, each in the file of its feature) with ids or rows.
--
-- A hash join of old and new rows: a nested loop over a thousand rows each would be a million comparisons, and the operations
-- that update turn the other joins off.
create or replace function record_transition() returns trigger language plpgsql
    set search_path from current
    set enable_nestloop = off
    set enable_hashjoin = on
    set enable_seqscan = on
    set jit = off
as $$
declare
    v_now   timestamptz;
    v_actor text := actor();
    v_xid   bigint;
    v_seen  record;
    v_freed uuid[];
    v_type  text;
    v_was   state;
    v_state state;
    v_lease uuid;
begin
    -- The plain path: nearly every statement claims jobs, or settles jobs that have succeeded, and no row is special (`plain`,
    -- transition_rules.sql). One read of the rows shows that, and what to write for each is known.
    select n.state, n.lease into v_state, v_lease from new_rows n limit 1;
    if v_state in ('in_progress', 'succeeded') then
        select count(*) = count(*) filter (where plain(
                   v_state, o.state, n.state, v_lease, o.lease, n.lease, n.settled_by, n.finished_at, n.attempt - o.attempt,
                   o.tenant = n.tenant and o.kind = n.kind and o.max_crashes = n.max_crashes and o.max_attempts = n.max_attempts
                       and o.retries = n.retries and o.crashes = n.crashes and o.priority = n.priority and o.position = n.position
                       and o.queue = n.queue and o.deadline_at is not distinct from n.deadline_at
                       and o.executor is not distinct from n.executor, n.retries, n.max_attempts,
                   n.crashes, n.max_crashes, num_nonnulls(n.note, o.agent, n.agent, o.workflow_id, n.workflow_id))) as plain,
               (select not (d.limited or d.capped) from dispatch d) as free, exists (select from watch) as watched,
               -- A claim has to name a live lease.
               v_lease is null or (select l.ended_at is null and l.name <> 'generator' from lease l where l.id = v_lease) as live,
               (select jsonb_build_object('version', l.app_version) from lease l
                 where l.id = v_lease and l.app_version is not null) as version,
               -- clock_now(), inlined.
               (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c) as now
          into v_seen from new_rows n left join old_rows o on o.id = n.id;
        if v_seen.plain and v_seen.free and v_seen.live then
            v_xid := pg_current_xact_id()::text::bigint;
            v_now := v_seen.now;
            v_was := case v_state when 'succeeded' then 'in_progress' else 'queued' end;
            v_type := event_type(v_was, v_state, null, null);
            insert into event (xid, job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)
            select v_xid + ledger_base(), n.id, n.tenant, n.kind, v_type, v_was, v_state, n.attempt, v_now, v_actor, v_seen.version from new_rows n;
            if v_seen.watched and v_state = 'succeeded' then
                perform notify_listeners(n.id::text) from new_rows n where exists (select from watch w where w.job_id = n.id);
            end if;
            return null;
        end if;
    end if;

    -- What has to be done, in one read. A maintenance task that found nothing comes here too, and must not cost a transaction
    -- id and a write.
    select n.*, o.*, d.limited, d.capped, d.running_counts, exists (select from watch) as watched,
           -- clock_now(), inlined.
           (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c) as now into v_seen
      from (select count(*) as rows, bool_or(n.workflow_id is not null) as flowing, bool_or(n.finished_at is not null) as finished,
                   bool_or(n.lease is not null) as held, bool_or(hidden(n.tenant, tg_relid)) as hidden,
                   bool_or(n.note ? 'moved') as moved,
                   bool_or(n.error_code = 'worker_lost' and n.state = 'failed') as lost
              from new_rows n) n,
           (select bool_or(o.state = 'waiting_for_approval') as asked, bool_or(o.state = 'failed') as failed,
                   bool_or(o.state = 'dead_letter') as dead,
                   bool_or(o.due_at = 'infinity') as parked
              from old_rows o) o, dispatch d;
    if v_seen.rows = 0 then
        return null;
    end if;
    v_now := v_seen.now;
    v_xid := pg_current_xact_id()::text::bigint;   -- once, instead of once per row by the column's default
    perform announce_upkeep();   -- it may wait for a time now, or have ended a workflow
    insert into event (xid, job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta)
    select v_xid + ledger_base(), n.id, n.tenant, n.kind,
           -- A worker that shows the lease was not lost, whatever its handler calls the error; it may have lost a process of
           -- its own, which it counts as a crash.
           event_type(o.state, n.state, case when n.settled_by = o.lease
                                          then case when n.crashes > o.crashes then 'process_died' end
                                          else n.error_code end, n.note),
           o.state, n.state, n.attempt, v_now, v_actor,
           case when n.state <> 'in_progress' then event_meta(o.state, n.state, n.note, n.id, n.error_code, n.error_message, n.due_at)
                else coalesce((select coalesce(n.note, '{}') || jsonb_build_object('version', l.app_version) from lease l
                                where l.id = n.lease and l.app_version is not null), n.note) end
      from new_rows n left join old_rows o on o.id = n.id
     where case
        -- Checked where it is read: if any of this is true for a row, the statement is refused.
        when o.id is null or not legal(o.state, n.state)
             or unfenced(o.state, n.state, o.lease, n.settled_by, n.error_code)
             or n.attempt <> o.attempt + (case when n.state = 'in_progress' and o.state <> 'in_progress' then 1 else 0 end)
             or n.lease <> o.lease or o.tenant <> n.tenant or o.kind <> n.kind or o.max_crashes <> n.max_crashes
             or o.agent is distinct from n.agent or o.workflow_id is distinct from n.workflow_id or o.queue <> n.queue
             or o.deadline_at is distinct from n.deadline_at
             or o.executor is distinct from n.executor and required(o.executor, 2) is distinct from required(n.executor, 2)
             or broken_state(n.state, n.finished_at is not null, n.error_code is not null and n.error_message is not null,
                             n.due_at is not null, n.approval_id is not null, n.lease is not null, n.settled_by is not null,
                             n.retries, n.max_attempts, n.crashes, n.max_crashes) is not null
        then refuse_transition(n.id, o.state, n.state, o.lease, n.lease, n.settled_by, n.error_code, o.attempt, n.attempt,
                 broken_state(n.state, n.finished_at is not null, n.error_code is not null and n.error_message is not null,
                              n.due_at is not null, n.approval_id is not null, n.lease is not null, n.settled_by is not null,
                              n.retries, n.max_attempts, n.crashes, n.max_crashes))
        else o.state <> n.state
             -- A waiting job got another time or position: not a transition, but it is recorded.
             or (n.state = 'queued' and n.note ? 'rescheduled' and not n.note ? 'moved' and n.note is distinct from o.note)
             or (n.state in ('queued', 'retry_waiting') and n.note ? 'moved'
                 and n.note -> 'moved' is distinct from o.note -> 'moved')
             or (n.state in ('queued', 'retry_waiting') and n.note ? 'replaced' and not n.note ?| array['moved', 'rescheduled']
                 and n.note -> 'replaced' is distinct from o.note -> 'replaced')
        end;

    if v_seen.hidden then
        raise exception 'job_state: the tenant was changed while the statement ran'
            using errcode = 'ZH002',
                  hint = 'Set holdfast.tenant before the statement and do not change it until the statement has ended.';
    end if;
    -- Before refuse_in_place_change: these say what is wrong with an approval, or which parents are missing.
    if v_seen.asked then
        perform approvals_on_transition(o, n) from old_rows o join new_rows n on n.id = o.id where o.state = 'waiting_for_approval';
    end if;
    if v_seen.flowing and v_seen.parked then
        perform parents_on_transition(o.id) from old_rows o join new_rows n on n.id = o.id
          where o.workflow_id is not null and o.due_at = 'infinity' and n.due_at is distinct from 'infinity'
            and n.state in ('queued', 'retry_waiting');
    end if;
    perform refuse_in_place_change(o, n, coalesce(v_seen.moved and exists (
                select from old_rows a join new_rows b on b.id = a.id
                 where b.note -> 'moved' is distinct from a.note -> 'moved' and b.note ? 'moved'
                   and b.state = a.state and b.state in ('queued', 'retry_waiting')), false), v_now)
       from old_rows o join new_rows n on n.id = o.id
      where changed_in_place(o.state, n.state, o.note, n.note,
                  o.priority <> n.priority, o.position <> n.position,
                  o.retries <> n.retries or o.crashes <> n.crashes or o.max_attempts <> n.max_attempts,
                  o.due_at is distinct from n.due_at or o.held_by is distinct from n.held_by,
                  o.started_at is distinct from n.started_at,
                  o.finished_at is distinct from n.finished_at or o.settled_by is distinct from n.settled_by
                      or o.error_code is distinct from n.error_code or o.error_message is distinct from n.error_message
                      or o.approval_id is distinct from n.approval_id);
    if v_seen.failed then
        perform refuse_rerun(o.id) from old_rows o join new_rows n on n.id = o.id
          where o.state = 'failed' and n.state in ('retry_waiting', 'dead_letter');
    end if;
    if v_seen.failed or v_seen.dead then
        perform dead_letters_on_transition(w.dead, w.gone, v_now) from (
            select array_agg(n.id) filter (where n.state = 'dead_letter') as dead,
                   array_agg(n.id) filter (where o.state = 'dead_letter') as gone
              from new_rows n join old_rows o on o.id = n.id where (o.state = 'dead_letter') <> (n.state = 'dead_letter')) w
         where w.dead is not null or w.gone is not null;
    end if;
    if v_seen.flowing then
        -- Not `failed`, which may be left again: see advance_failed.
        perform workflows_on_transition(w.jobs) from (
            select array_agg(n.id) as jobs from new_rows n join old_rows o on o.id = n.id
             where n.workflow_id is not null and o.state <> n.state
               and n.state not in ('leased', 'in_progress', 'failed', 'cleaned')) w where w.jobs is not null;
    end if;
    if v_seen.watched and v_seen.finished then
        perform notify_listeners(n.id::text) from new_rows n where n.finished_at is not null
            and exists (select from watch w where w.job_id = n.id);
    end if;
    if v_seen.capped then
        perform tenants_on_transition(array_agg(c.tenant), array_agg(c.change)) from (
            select n.tenant, sum(pends(n.state, v_seen.running_counts)::integer - pends(o.state, v_seen.running_counts)::integer)::integer as change
              from new_rows n join old_rows o on o.id = n.id
             where pends(n.state, v_seen.running_counts) <> pends(o.state, v_seen.running_counts)
             group by n.tenant) c where c.change <> 0;
    end if;
    if v_seen.limited then
        v_freed := array(select n.id from new_rows n join old_rows o on o.id = n.id where o.lease is not null and n.lease is null);
        if v_freed <> '{}' then
            perform free_places(v_freed);
        end if;
    end if;
    -- Nearly always every lease is live and no holder was declared lost: that is cheap to see.
    if v_seen.lost or v_seen.held and exists (
            select from (select distinct n.lease from new_rows n where n.lease is not null) t
             where (select l.ended_at is null and l.name <> 'generator' from lease l where l.id = t.lease) is not true) then
        perform check_leases(array_agg(t.job), array_agg(t.lease), array_agg(t.taken), v_now)
           from (select coalesce(n.lease, o.lease) as lease, n.lease is not null as taken, (array_agg(n.id))[1] as job
                   from new_rows n join old_rows o on o.id = n.id
                  where o.state <> n.state
                    and (n.state = 'leased' or (n.state = 'in_progress' and o.state = 'queued')
                         or (n.state = 'failed' and n.error_code = 'worker_lost' and n.settled_by is distinct from o.lease))
                  group by 1, 2) t;
    end if;
    return null;
end $$;

create or replace trigger record_transition after update on job_state
    referencing old table as old_rows new table as new_rows
    for each statement execute function record_transition();
-- Also under session_replication_role = replica. Logical replication does not fire statement triggers for updates.
alter table job_state enable always trigger record_transition;
