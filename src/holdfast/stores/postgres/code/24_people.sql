-- What was asked, said and told does not change; what is over is over; and a question is decided by what people said.

-- A job waits for one gate, and leaves it by the decision that was made there: whoever updates the state alone is
-- refused. One that is cancelled, or whose deadline has passed, takes its question back. Called by record_transition.
create or replace function leave_gate(old job_state, new job_state) returns void
language plpgsql set search_path from current as $$
declare
    v_gate gate;
begin
    if new.state = old.state then
        if new.gate_id is distinct from old.gate_id then
            raise exception 'job %: it waits for gate %, and for no other', old.id, old.gate_id using errcode = 'ZH002';
        end if;
        return;
    elsif new.gate_id is not null then
        raise exception 'job %: a job that leaves its gate names it no more', old.id using errcode = 'ZH002';
    end if;
    select g.* into v_gate from gate g where g.id = old.gate_id and g.job_id = old.id and g.tenant = old.tenant;
    if new.state = 'cancelled'
       or new.state = 'failed' and new.error_code = 'deadline_passed' and old.deadline_at <= clock_now() then
        update gate g set state = 'withdrawn', decided_at = clock_now() where g.id = v_gate.id and g.state = 'open';
    elsif (case new.state when 'queued' then v_gate.state = 'approved' or v_gate.state in ('denied', 'expired') and v_gate.on_deny = 'resume'
                          when 'failed' then v_gate.state in ('denied', 'expired') and v_gate.on_deny = 'fail' end) is not true then
        raise exception 'job %: illegal transition % -> %: its gate was not decided so', old.id, old.state, new.state
            using errcode = 'ZH001', hint = 'Decide the gate: select * from approve_gate(…), or deny_gate(…).';
    end if;
end $$;

-- --- gates ---

create or replace function judge_gate_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if new.state <> 'open' or not exists (select from job_state s where s.id = new.job_id and s.tenant = new.tenant
                                             and s.state = 'waiting_for_approval' and s.gate_id = new.id) then
        raise exception 'gate %: a gate is opened by the job that waits for it', new.id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on gate for each row execute function judge_gate_insert();

-- Whether a gate has been decided as it says: by votes, by time, or because its job waits for it no more.
create or replace function decided_so(p_gate gate) returns boolean language plpgsql set search_path from current as $$
begin
    return case p_gate.state
        when 'open' then true
        when 'approved' then (select count(*) from vote v where v.gate_id = p_gate.id and v.verdict = 'approve') >= p_gate.quorum
                             or p_gate.on_expire = 'approve' and p_gate.expires_at <= clock_now()
        when 'denied' then exists (select from vote v where v.gate_id = p_gate.id and v.verdict = 'deny')
        when 'expired' then p_gate.on_expire = 'deny' and p_gate.expires_at <= clock_now()
        when 'withdrawn' then pg_trigger_depth() > 1   -- leave_gate, whose job has left
                              or not exists (select from job_state s where s.id = p_gate.job_id and s.gate_id = p_gate.id)
    end;
end $$;

create or replace function judge_gate_update() returns trigger language plpgsql set search_path from current as $$
begin
    if old.state <> 'open'
       or (old.id, old.tenant, old.job_id, old.n, old.name, old.summary, old.data::text, old.form::text, old.approvers, old.quorum,
           old.requester, old.not_requester, old.on_deny, old.on_expire, old.expires_in, old.remind_every, old.escalate_to,
           old.notify, old.content_hash, old.opened_at)
          is distinct from
          (new.id, new.tenant, new.job_id, new.n, new.name, new.summary, new.data::text, new.form::text, new.approvers, new.quorum,
           new.requester, new.not_requester, new.on_deny, new.on_expire, new.expires_in, new.remind_every, new.escalate_to,
           new.notify, new.content_hash, new.opened_at) then
        raise exception 'gate %: a decided gate and what was asked never change', old.id using errcode = 'ZH002';
    elsif new.expires_at is distinct from old.expires_at and (old.on_expire <> 'remind' or new.expires_at < old.expires_at)
       or new.escalated_at is distinct from old.escalated_at
          and (old.escalated_at is not null or (old.escalate_at <= clock_now()) is not true) then
        raise exception 'gate %: its times are kept as they were asked for', old.id using errcode = 'ZH002';
    elsif not coalesce(decided_so(new), false) then
        raise exception 'gate %: illegal transition open -> %: what was said does not amount to it', old.id, new.state
            using errcode = 'ZH001', hint = 'Decide it: select * from approve_gate(…), or deny_gate(…).';
    end if;
    return new;
end $$;
create or replace trigger judge_update before update on gate for each row execute function judge_gate_update();

-- --- votes and tokens ---

create or replace function judge_vote_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (
        select from gate g join job_state s on s.id = g.job_id and s.gate_id = g.id
         where g.id = new.gate_id and g.tenant = new.tenant and g.state = 'open'
           and (g.on_expire = 'remind' or g.expires_at is null or g.expires_at > new.at)
           and (g.approvers = '{}' or new.person = any (g.approvers)
                or g.escalated_at is not null and new.person = any (g.escalate_to))
           and not (g.not_requester and new.person = g.requester)) then
        raise exception 'gate %: one word a person who may, while the gate is open', new.gate_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on vote for each row execute function judge_vote_insert();
create or replace trigger refuse_update before update on vote for each statement execute function refuse_change();

create or replace function judge_token_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if new.used_at is not null or not exists (select from gate g where g.id = new.gate_id and g.tenant = new.tenant and g.state = 'open') then
        raise exception 'a token is issued unused, for an open gate' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on gate_token for each row execute function judge_token_insert();

create or replace function judge_token_update() returns trigger language plpgsql as $$
begin
    raise exception 'a token is used once, and is otherwise not changed' using errcode = 'ZH002';
end $$;
create or replace trigger judge_update before update on gate_token for each row
    when (old.used_at is not null or new.used_at is null or old.hash <> new.hash or old.gate_id <> new.gate_id
          or old.person is distinct from new.person or old.tenant <> new.tenant
          or old.issued_by <> new.issued_by or old.issued_at <> new.issued_at
          or old.expires_at is distinct from new.expires_at)
    execute function judge_token_update();

-- --- steps and events ---

create or replace function judge_step() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_op = 'INSERT' then
        raise exception 'job %: an approval is over when its gate is decided', new.job_id using errcode = 'ZH002';
    elsif old.ended_at is not null and sealed_alike(old.value, new.value) and to_jsonb(old) - 'value' = to_jsonb(new) - 'value' then
        return new;   -- the same result, sealed with another key (27_payloads.sql)
    elsif old.ended_at is not null or (old.job_id, old.n, old.tenant, old.name, old.kind) <> (new.job_id, new.n, new.tenant, new.name, new.kind) then
        raise exception 'job %: step % is over, and is not written again', old.job_id, old.n using errcode = 'ZH002';
    elsif not exists (select from gate g where g.job_id = old.job_id and g.n = old.n and g.tenant = old.tenant
                         and g.id::text = new.value ->> 'gate_id' and g.state = new.value ->> 'state' and g.decided_at = new.ended_at) then
        raise exception 'job %: an approval is over when its gate is decided', old.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on step for each row
    when (new.kind = 'approval' and new.ended_at is not null) execute function judge_step();
create or replace trigger judge_update before update on step for each row
    when (old.ended_at is not null or old.kind = 'approval' and new.ended_at is not null
          or old.job_id <> new.job_id or old.n <> new.n or old.tenant <> new.tenant or old.name <> new.name or old.kind <> new.kind)
    execute function judge_step();

create or replace trigger refuse_update before update on app_event for each statement execute function refuse_change();

-- --- leaving ---

-- With their job, as its ledger does (judge_delete); steps also when somebody has them forgotten (rewind).
create or replace function judge_step_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s join gone g on s.id = g.job_id where s.state not in ('dead_letter', 'cleaned')) then
        raise exception 'steps are forgotten of dead letters only' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on step
    referencing old table as gone for each statement execute function judge_step_delete();
create or replace trigger judge_delete after delete on gate
    referencing old table as gone for each statement execute function judge_delete();

create or replace function judge_part_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gate t join gone g on t.id = g.gate_id) then
        raise exception '%: rows are never deleted while their gate exists', tg_table_name using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger judge_delete after delete on vote
    referencing old table as gone for each statement execute function judge_part_delete();
create or replace trigger refuse_truncate before truncate on step for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on gate for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on vote for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on gate_token for each statement execute function refuse_change();
