-- The ledger: one event a transition, in the same transaction, whoever made it (CX-4).
-- A hash join of old and new rows; a nested loop over a thousand rows each would be a million comparisons,
-- and the verbs that update switch the other joins off.
create or replace function record_transition() returns trigger language plpgsql
    set search_path from current
    set enable_nestloop = off
    set enable_hashjoin = on
    set enable_seqscan = on
as $$
declare
    v_now   timestamptz := clock_now();
    v_actor text := actor();
    v_bad   record;
begin
    insert into event (job_id, tenant, kind, verb, from_state, to_state, attempt, at, actor, meta)
    select n.id, n.tenant, n.kind,
           -- Whoever shows the lease was not lost, whatever its handler calls the error.
           verb_of(o.state, n.state, case when n.settled_by = o.lease then null else n.error_code end, n.note),
           o.state, n.state, n.attempt, v_now, v_actor,
           case when n.state in ('failed', 'dead_letter') then
                    coalesce(n.note, '{}') || jsonb_build_object('error_code', n.error_code,
                                                                 'error_message', n.error_message)
                when n.state = 'retry_waiting' then
                    coalesce(n.note, '{}') || jsonb_build_object('due_at',
                        to_char(n.due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
                else n.note end
      from new_rows n join old_rows o on o.id = n.id
     where o.state <> n.state;

    -- Who takes a job shows a live lease; who declares a holder lost must be right about it.
    select n.id, n.state, o.lease as was, n.lease into v_bad
      from new_rows n
      join old_rows o on o.id = n.id
      left join lease l on l.id = coalesce(n.lease, o.lease)
     where o.state <> n.state
       and case when n.state = 'leased' or (n.state = 'in_progress' and o.state = 'queued')
                    then l.id is null or l.ended_at is not null
                when n.state = 'failed' and n.error_code = 'worker_lost' and n.settled_by is distinct from o.lease
                    then l.ended_at is null and l.until > v_now
                else false end
     limit 1;
    if found then
        if v_bad.lease is not null then
            raise exception 'job % cannot be taken under lease %: there is no such live lease', v_bad.id, v_bad.lease
                using errcode = 'ZH003', hint = 'Open a lease first: select * from open_lease(…).';
        end if;
        raise exception 'job % cannot be declared lost: lease % is still live', v_bad.id, v_bad.was
            using errcode = 'ZH003';
    end if;
    return null;
end $$;

create or replace trigger record_transition after update on job_state
    referencing old table as old_rows new table as new_rows
    for each statement execute function record_transition();
