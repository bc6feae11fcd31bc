-- What an agent's registration means for a job about to be enqueued. The functions return a refusal and the trigger on `job`
-- raises it; both use one rule, so hand-written inserts are checked too.
--
-- A transaction that accepts or claims a job of an agent first locks `agent` in row share mode until it ends. No other writer
-- waits for that lock: after an agent has been disabled, drain_agent reads in pg_locks which transactions hold it and waits
-- for them to end. When drain_agent returns, no transaction is left that saw the agent enabled. The lock is on the table
-- rather than on the row, so that an agent can be registered and disabled while jobs for its name are in flight.

-- The agent's current row, which stays valid until the end of this transaction unless the agent is disabled; null if it is not
-- registered. Approvals read `requires_approval` here.
create or replace function agent_now(p_tenant text, p_agent text) returns agent
language plpgsql set search_path from current as $$
declare v_agent agent;
begin
    select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent;
    if v_agent.disabled_at is not null then
        return v_agent;   -- does not wait for a caller that drains it
    end if;
    perform from agent where false for share;   -- locks the table, not a row
    if current_setting('transaction_isolation') = 'read committed' then
        select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent;
    else
        -- An older snapshot does not show changes committed since. A row lock detects them, and the transaction fails (40001).
        select a.* into v_agent from agent a where a.tenant = p_tenant and a.id = p_agent for share;
    end if;
    return v_agent;
end $$;

-- Return why the agent refuses a job of this kind and size, or null if it accepts it.
create or replace function agent_refusal(p_agent agent, p_kind text, p_bytes integer) returns text language sql immutable
return case when (p_agent).disabled_at is not null then 'agent_disabled'
            when (p_agent).kind <> p_kind then 'agent_kind_mismatch'
            when p_bytes > (p_agent).max_payload_bytes then 'agent_payload_limit' end;

-- Latest start of the agent's job: the job's own deadline, or its earliest start plus the agent's maximum wait.
create or replace function agent_deadline(p_agent agent, p_deadline timestamptz, p_after timestamptz, p_now timestamptz)
returns timestamptz language sql stable
return least(p_deadline, greatest(p_after, p_now) + make_interval(secs => (p_agent).max_wait));

-- Message for a refusal; the same text as in features/agents/model.py.
create or replace function agent_message(p_agent agent, p_reason text, p_kind text, p_bytes integer) returns text
language sql stable
return case p_reason
    when 'agent_disabled' then format('agent %s was disabled by %s on %s: %s', (p_agent).id, (p_agent).disabled_by,
        to_char((p_agent).disabled_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), (p_agent).disabled_reason)
    when 'agent_kind_mismatch' then format('agent %s runs jobs of kind %s, not %s', (p_agent).id, (p_agent).kind, p_kind)
    when 'agent_payload_limit' then format('agent %s takes payloads of up to %s bytes, and this one has %s', (p_agent).id,
        (p_agent).max_payload_bytes, p_bytes)
    when 'agent_wait_limit' then format('a job of agent %s may wait %s s, and needs a deadline that says so', (p_agent).id,
        (p_agent).max_wait) end;

-- The agents of a batch by id, as they are for the rest of this transaction. Null if none is registered.
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

-- Choose between two policies. "job": only the job's own value counts. "kind": the job's own value is its kind's default, and
-- the agent's value takes precedence. Otherwise: the job's own value if it has one.
create or replace function preferred(p_policy text, p_own text, p_agents text) returns text language sql immutable
return case p_policy when 'job' then p_own when 'kind' then coalesce(p_agents, p_own) else coalesce(p_own, p_agents) end;

-- The columns that a job inherits from its agent. The default backoff is not stored with a job.
create or replace function agent_parts(p_job json, p_agent agent, p_now timestamptz) returns json language sql stable
return json_build_object(
    'max_attempts', preferred(p_job ->> 'policy', p_job ->> 'max_attempts', (p_agent).max_attempts::text),
    'max_crashes', preferred(p_job ->> 'policy', p_job ->> 'max_crashes', (p_agent).max_crashes::text),
    'backoff', nullif(preferred(p_job ->> 'policy', p_job ->> 'backoff', (p_agent).backoff::text)::jsonb,
                      '{"base": 1, "factor": 4, "cap": 7200, "jitter": true, "head": 0}'),
    'deadline_at', agent_deadline(p_agent,
        coalesce((p_job ->> 'deadline_at')::timestamptz, p_now + make_interval(secs => (p_job ->> 'deadline_in')::float8)),
        coalesce((p_job ->> 'run_at')::timestamptz, p_now + make_interval(secs => (p_job ->> 'delay')::float8)), p_now));

create or replace function refuse_for_agent(p_agent agent, p_reason text, p_kind text, p_bytes integer) returns void
language plpgsql set search_path from current as $$
begin
    raise exception '%', agent_message(p_agent, p_reason, p_kind, p_bytes)
        using errcode = case p_reason when 'agent_disabled' then 'ZH020' when 'agent_kind_mismatch' then 'ZH021'
                                      when 'agent_payload_limit' then 'ZH022' else 'ZH023' end;
end $$;

-- Refuse new jobs that their agents do not accept. A retry was accepted with its first attempt: if its agent has been disabled
-- since, it waits. Called by on_job_insert.
create or replace function agents_on_insert(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_row   record;
    v_bad   record;
    v_agent agent;
begin
    for v_row in select distinct j.tenant, j.agent from job j
                  where j.id = any (p_jobs) and j.agent is not null and j.retry_of is null order by 1, 2 loop
        v_agent := agent_now(v_row.tenant, v_row.agent);
        continue when v_agent.id is null;
        select j.kind, octet_length(j.payload::text) as bytes, r.reason into v_bad
          from job j, lateral (select coalesce(
                   agent_refusal(v_agent, j.kind, octet_length(j.payload::text)),
                   -- enqueue_many sets the deadline; a hand-written insert has to set it itself.
                   case when v_agent.max_wait is not null
                             and (j.deadline_at <= agent_deadline(v_agent, null, j.run_at, p_now)) is not true
                        then 'agent_wait_limit' end) as reason) r
         where j.id = any (p_jobs) and j.tenant = v_row.tenant and j.agent = v_row.agent and j.retry_of is null
           and r.reason is not null limit 1;
        if found then
            perform refuse_for_agent(v_agent, v_bad.reason, v_bad.kind, v_bad.bytes);
        end if;
    end loop;
end $$;

create or replace function refuse_agent_delete() returns trigger language plpgsql as $$
begin
    raise exception 'agents cannot be deleted; disable the agent instead' using errcode = 'ZH002';
end $$;

create or replace trigger refuse_delete before delete on agent for each row execute function refuse_agent_delete();
create or replace trigger refuse_truncate before truncate on agent for each statement execute function refuse_agent_delete();

-- Agent registry: set, disable, enable. Refusals are returned, not raised.

-- Set an agent: register it, or replace its definition. Fields that are left out get the defaults of a new agent.
-- Does not change whether the agent is disabled.
create or replace function set_agent(agent text, name text default null, kind text default null,
    max_attempts integer default null, max_crashes integer default null, backoff jsonb default null,
    max_payload_bytes integer default null, max_wait double precision default null,
    requires_approval boolean default false, for_tenant text default null, actor text default null) returns setof agent
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(set_agent.for_tenant, set_agent.actor);
begin
    insert into agent as a (tenant, id, name, kind, max_attempts, max_crashes, backoff, max_payload_bytes, max_wait,
                            requires_approval, created_at, updated_at)
    values (v_scope, set_agent.agent, coalesce(set_agent.name, set_agent.agent), set_agent.kind,
            set_agent.max_attempts, set_agent.max_crashes, set_agent.backoff,
            set_agent.max_payload_bytes, set_agent.max_wait,
            coalesce(set_agent.requires_approval, false), v_now, v_now)
    on conflict (tenant, id) do update
       set name = excluded.name, kind = excluded.kind, max_attempts = excluded.max_attempts,
           max_crashes = excluded.max_crashes, backoff = excluded.backoff,
           max_payload_bytes = excluded.max_payload_bytes, max_wait = excluded.max_wait,
           requires_approval = excluded.requires_approval, updated_at = excluded.updated_at
     where (a.name, a.kind, a.max_attempts, a.max_crashes, a.backoff, a.max_payload_bytes, a.max_wait, a.requires_approval)
           is distinct from (excluded.name, excluded.kind, excluded.max_attempts, excluded.max_crashes, excluded.backoff,
                             excluded.max_payload_bytes, excluded.max_wait, excluded.requires_approval);
    return query select a.* from agent a where a.tenant = v_scope and a.id = set_agent.agent;
end $$;

-- Stop work for an agent: new jobs for it are refused, and waiting jobs are not started. If it is already disabled, the first
-- reason and actor are kept. Transactions that saw the agent enabled may still be open: call drain_agent after this has been
-- committed to wait for them. `drained` is always false; the column is kept for callers that select it.
create or replace function disable_agent(agent text, reason text, actor text default null, for_tenant text default null)
returns table (id text, disabled_at timestamptz, disabled_by text, disabled_reason text, drained boolean, refused boolean,
               refusal text) language plpgsql security definer set search_path from current as $$
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(disable_agent.for_tenant, disable_agent.actor);
begin
    if coalesce(disable_agent.reason, '') !~ E'\\S' then
        return query select disable_agent.agent, null::timestamptz, null, null, false, true, 'reason_required';
        return;
    end if;
    update agent a
       set disabled_at = v_now, disabled_by = actor(), disabled_reason = disable_agent.reason, updated_at = v_now
     where a.tenant = v_scope and a.id = disable_agent.agent and a.disabled_at is null;
    return query
    select disable_agent.agent, a.disabled_at, a.disabled_by, a.disabled_reason, false, a.id is null,
           case when a.id is null then 'not_found' end
      from (select) one left join agent a on a.tenant = v_scope and a.id = disable_agent.agent;
end $$;

-- Wait until every transaction that may have seen the agent enabled has ended. Returns false if that takes longer than this
-- function's lock_timeout. Transactions that begin later see the agent disabled and are not waited for.
create or replace function drain_agent(agent text, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_until timestamptz := clock_timestamp() + current_setting('lock_timeout')::interval;
    v_open  text[] := agent_users();
begin
    perform enter(drain_agent.for_tenant);
    while agent_users() && v_open loop
        if clock_timestamp() > v_until then
            return false;
        end if;
        perform pg_sleep(0.01);
    end loop;
    return true;
end $$;

-- The transactions that have accepted or claimed a job of any agent (agent_now, agents_on_claim), prepared ones included.
create or replace function agent_users() returns text[] language plpgsql set search_path from current as $$
begin
    return array(select l.virtualtransaction from pg_locks l
                  where l.locktype = 'relation' and l.relation = 'agent'::regclass and l.mode = 'RowShareLock' and l.granted
                    and l.database = (select d.oid from pg_database d where d.datname = current_database())
                    and l.pid is distinct from pg_backend_pid());
end $$;

-- Enable an agent again and requeue up to `want` of its postponed jobs. resume_agent requeues the rest; otherwise each returns
-- to the queue when its postponement ends.
create or replace function enable_agent(agent text, want integer default 1000, for_tenant text default null, actor text default null)
returns table (id text, resumed integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(enable_agent.for_tenant, enable_agent.actor);
begin
    update agent a set disabled_at = null, disabled_by = null, disabled_reason = null, updated_at = v_now
     where a.tenant = v_scope and a.id = enable_agent.agent and a.disabled_at is not null;
    return query
    select enable_agent.agent, resume_agent(enable_agent.agent, enable_agent.want, v_scope), a.id is null,
           case when a.id is null then 'not_found' end
      from (select) one left join agent a on a.tenant = v_scope and a.id = enable_agent.agent;
end $$;

-- Requeue jobs that were postponed while their agent was disabled. Returns how many.
create or replace function resume_agent(agent text, want integer default 1000, for_tenant text default null) returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_scope  text := enter(resume_agent.for_tenant);
    v_queues text[];
    v_count  integer;
begin
    if exists (select from agent a where a.tenant = v_scope and a.id = resume_agent.agent and a.disabled_at is not null) then
        return 0;
    end if;
    with back as materialized (
        select s.id from job_state s
         where s.tenant = v_scope and s.agent = resume_agent.agent and s.agent is not null
           and s.state in ('queued', 'retry_waiting') and s.state = 'queued' and s.due_at is not null
           and s.note ->> 'held' = 'agent_disabled'
         order by s.due_at, s.id limit resume_agent.want for update skip locked
    ), resumed as (
        update job_state s set due_at = null, note = null from back where s.id = back.id returning s.queue
    )
    select count(*), array_agg(distinct queue) into v_count, v_queues from resumed;
    perform notify_listeners(q) from unnest(v_queues) q;
    return v_count;
end $$;

-- Of the rows that a claim has picked and locked, return those it may take. Jobs of disabled agents are postponed for ten
-- minutes, together with other jobs of the same agents, so that the next claims do not scan them again. The postponement ends
-- by itself, so no job is lost if a call to enable_agent fails half-way. A postponement is not a transition and is not in the
-- ledger.
--
-- The lock on `agent` is for drain_agent, which waits for the transactions that hold it.
create or replace function agents_on_claim(p_rows tid[], p_now timestamptz) returns tid[]
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_whose record;
    v_until timestamptz := p_now + interval '10 min';
begin
    perform from agent where false for share;
    for v_whose in
        select distinct s.tenant, s.agent from job_state s where s.ctid = any (p_rows) and s.agent is not null order by 1, 2
    loop
        continue when not exists (select from agent a where a.tenant = v_whose.tenant and a.id = v_whose.agent
                                     and a.disabled_at is not null);
        update job_state s set due_at = v_until, note = '{"held": "agent_disabled"}'
         where s.ctid = any (p_rows) and s.tenant = v_whose.tenant and s.agent = v_whose.agent;
        with others as materialized (
            select s.id from job_state s
             where s.tenant = v_whose.tenant and s.agent = v_whose.agent and s.agent is not null
               and s.state in ('queued', 'retry_waiting') and s.state = 'queued' and s.due_at is null
             order by s.id limit 1000 for update skip locked
        )
        update job_state s set due_at = v_until, note = '{"held": "agent_disabled"}' from others where s.id = others.id;
    end loop;
    return array(select s.ctid from job_state s where s.ctid = any (p_rows) and s.due_at is null);
end $$;

-- Set a label that may execute jobs, and return its row. Leases are opened under labels: while no label is registered,
-- every label may execute. A label with the role `generator` plans work and never executes it.
create or replace function set_executor(label text, role text default 'executor', actor text default null)
returns setof executor language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', nullif(set_executor.actor, ''));
    insert into executor as e (label, role, added_by, added_at)
    values (set_executor.label, set_executor.role, actor(), clock_now())
    on conflict (label) do update set role = excluded.role, added_by = excluded.added_by, added_at = excluded.added_at
     where e.role <> excluded.role;
    return query select e.* from executor e where e.label = set_executor.label;
end $$;

-- Remove a label from the executors. Returns false if it was not registered.
create or replace function remove_executor(label text, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', remove_executor.actor);
    delete from executor e where e.label = remove_executor.label;
    return found;
end $$;
