-- The judge of every update of a state row (CX-1). The WHEN clause decides and costs next to nothing; the
-- function only finds the words. The pairs are those of domain/transitions.py: a test tries every ordered pair.
create or replace function legal(was state, now_is state) returns boolean language sql immutable
return was = now_is or case was
    when 'queued' then now_is in ('leased', 'in_progress', 'failed', 'cancelled')
    when 'leased' then now_is in ('in_progress', 'queued', 'cancelled')
    when 'in_progress' then now_is in ('succeeded', 'failed', 'waiting_for_approval', 'retry_waiting', 'cancelled')
    when 'waiting_for_approval' then now_is in ('queued', 'failed', 'cancelled')
    when 'failed' then now_is in ('retry_waiting', 'dead_letter', 'cleaned')
    when 'retry_waiting' then now_is in ('queued', 'failed', 'cancelled')
    when 'dead_letter' then now_is in ('queued', 'cancelled')
    when 'succeeded' then now_is = 'cleaned'
    when 'cancelled' then now_is = 'cleaned'
    else false
end;

-- An attempt may be ended by whoever shows its lease, cancelled by anyone, or declared lost by the reaper.
create or replace function unfenced(was state, now_is state, held_by uuid, shown uuid, error_code text)
returns boolean language sql immutable
return was = 'in_progress' and now_is not in ('in_progress', 'cancelled')
    and shown is distinct from held_by
    and (now_is <> 'failed' or error_code is distinct from 'worker_lost');

create or replace function refuse_transition() returns trigger language plpgsql set search_path from current as $$
begin
    if not legal(old.state, new.state) then
        raise exception 'job %: illegal transition % -> %', old.id, old.state, new.state
            using errcode = 'ZH001', hint = 'The states and their ways are in docs/reference/states.md.';
    elsif unfenced(old.state, new.state, old.lease, new.settled_by, new.error_code) then
        raise exception 'job %: % -> % needs the lease token of its holder', old.id, old.state, new.state
            using errcode = 'ZH003', hint = 'Call the function of that verb with the lease you were given.';
    elsif new.attempt <> old.attempt + (case when new.state = 'in_progress' and old.state <> 'in_progress' then 1 else 0 end) then
        raise exception 'job %: attempt % -> % is not how attempts are counted', old.id, old.attempt, new.attempt
            using errcode = 'ZH002', hint = 'Starting a job adds one; nothing else changes it.';
    elsif new.lease <> old.lease then
        raise exception 'job %: a held job does not change hands', old.id using errcode = 'ZH003';
    end if;
    raise exception 'job %: id, tenant, kind, agent and crash limit never change', old.id using errcode = 'ZH002';
end $$;

create or replace trigger judge_transition before update on job_state
    for each row when (
        not legal(old.state, new.state)
        or unfenced(old.state, new.state, old.lease, new.settled_by, new.error_code)
        or new.attempt <> old.attempt
            + (case when new.state = 'in_progress' and old.state <> 'in_progress' then 1 else 0 end)
        or new.lease <> old.lease
        or old.id <> new.id or old.tenant <> new.tenant or old.kind <> new.kind
        or old.max_crashes <> new.max_crashes or old.agent is distinct from new.agent
        or old.workflow_id is distinct from new.workflow_id
    )
    execute function refuse_transition();
