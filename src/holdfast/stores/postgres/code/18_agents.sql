-- What an agent's registration means for a job about to be enqueued (CX-16). One rule for the functions, which answer,
-- and for the trigger on `job`, which refuses: hand-written inserts are judged as well.
--
-- A transaction that lets in a job of an agent, or takes one, first locks `agent` in row share mode, until it ends. Nobody
-- waits for that lock: drain_agent reads in pg_locks which transactions hold it when the agent has been disabled, and waits
-- until they have ended. So when it has returned, no transaction is left that found the agent enabled. The lock is on the
-- table, so that an agent can be registered and disabled while jobs for its name are under way.
drop function if exists agent_key(text, text);

-- The agent as it is now, and stays until the end of this transaction unless it is disabled; null if nobody registered
-- it. Approval gates read `requires_approval` here.
create or replace function agent_now(p_tenant text, p_agent text) returns agent
language plpgsql set search_path from current as $$
declare
    v_agent agent;
begin
    select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent;
    if v_agent.disabled_at is not null then
        return v_agent;   -- and does not wait for whoever drains it
    end if;
    perform from agent where false for share;   -- locks the table, no row
    if current_setting('transaction_isolation') = 'read committed' then
        select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent;
    else
        -- An older snapshot does not show what was committed meanwhile; a lock finds out, and the transaction fails (40001).
        select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent for share;
    end if;
    return v_agent;
end $$;

-- Why it takes no job of this kind and size, or null.
create or replace function agent_refusal(p_agent agent, p_kind text, p_bytes integer) returns text language sql immutable
return case when (p_agent).disabled_at is not null then 'agent_disabled'
            when (p_agent).kind <> p_kind then 'agent_kind_mismatch'
            when p_bytes > (p_agent).max_payload_bytes then 'agent_payload_limit' end;

-- When a job of it must have been started: its own deadline, or as long after it may be begun as the agent's jobs may wait.
create or replace function agent_deadline(p_agent agent, p_deadline timestamptz, p_after timestamptz, p_now timestamptz)
returns timestamptz language sql stable
return least(p_deadline, greatest(p_after, p_now) + make_interval(secs => (p_agent).max_wait));

-- A refusal in words; those of features/agents/model.py.
create or replace function agent_says(p_agent agent, p_reason text, p_kind text, p_bytes integer) returns text
language sql stable
return case p_reason
    when 'agent_disabled' then format('agent %s was disabled by %s on %s: %s', (p_agent).id, (p_agent).disabled_by,
        to_char((p_agent).disabled_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), (p_agent).disabled_reason)
    when 'agent_kind_mismatch' then format('agent %s runs jobs of kind %s, not %s', (p_agent).id, (p_agent).kind, p_kind)
    when 'agent_payload_limit' then format('agent %s takes payloads of up to %s bytes, and this one has %s', (p_agent).id,
        (p_agent).max_payload_bytes, p_bytes)
    when 'agent_wait_limit' then format('a job of agent %s may wait %s s, and needs a deadline that says so', (p_agent).id,
        (p_agent).max_wait) end;

-- The agents of a batch, by their ids, as they are for the rest of this transaction. Null if none is registered.
create or replace function agents_of(p_jobs json, p_tenant text) returns jsonb
language plpgsql set search_path from current as $$
declare
    v_agents jsonb;
    v_agent  agent;
    v_name   text;
begin
    for v_name in
        select distinct j ->> 'agent' from json_array_elements(p_jobs) j where j ->> 'agent' is not null order by 1
    loop
        v_agent := agent_now(p_tenant, v_name);
        if v_agent.id is not null then
            v_agents := coalesce(v_agents, '{}') || jsonb_build_object(v_name, to_jsonb(v_agent));
        end if;
    end loop;
    return v_agents;
end $$;

-- Which of two policies counts: "job", its own alone; "kind", its own is only its kind's, and the agent's goes before
-- it; else its own where it says something.
create or replace function preferred(p_policy text, p_own text, p_agents text) returns text language sql immutable
return case p_policy when 'job' then p_own when 'kind' then coalesce(p_agents, p_own) else coalesce(p_own, p_agents) end;

-- What an agent's job has of its agent. The usual backoff is not stored with a job.
create or replace function agent_parts(p_job json, p_agent agent, p_now timestamptz) returns json language sql stable
return json_build_object(
    'max_retries', preferred(p_job ->> 'policy', p_job ->> 'max_retries', (p_agent).max_retries::text),
    'max_crashes', preferred(p_job ->> 'policy', p_job ->> 'max_crashes', (p_agent).max_crashes::text),
    'backoff', nullif(preferred(p_job ->> 'policy', p_job ->> 'backoff', (p_agent).backoff::text)::jsonb,
                      '{"base": 1, "factor": 2, "cap": 300, "jitter": true, "head": 0}'),
    'deadline_at', agent_deadline(p_agent, (p_job ->> 'deadline_at')::timestamptz,
        coalesce((p_job ->> 'process_after')::timestamptz, p_now + make_interval(secs => (p_job ->> 'delay')::float8)), p_now));

create or replace function refuse_for_agent(p_agent agent, p_reason text, p_kind text, p_bytes integer) returns void
language plpgsql set search_path from current as $$
begin
    raise exception '%', agent_says(p_agent, p_reason, p_kind, p_bytes)
        using errcode = case p_reason when 'agent_disabled' then 'ZH020' when 'agent_kind_mismatch' then 'ZH021'
                                      when 'agent_payload_limit' then 'ZH022' else 'ZH023' end;
end $$;

create or replace function refuse_agent_delete() returns trigger language plpgsql as $$
begin
    raise exception 'an agent is disabled, never deleted' using errcode = 'ZH002';
end $$;

create or replace trigger refuse_delete before delete on agent for each row execute function refuse_agent_delete();
create or replace trigger refuse_truncate before truncate on agent for each statement execute function refuse_agent_delete();

create or replace function refuse_agent_rename() returns trigger language plpgsql as $$
begin
    raise exception 'agent %: jobs refer to its id, which never changes', old.id using errcode = 'ZH002';
end $$;

create or replace trigger refuse_rename before update on agent for each row
    when (old.tenant <> new.tenant or old.id <> new.id or old.created_at <> new.created_at)
    execute function refuse_agent_rename();
