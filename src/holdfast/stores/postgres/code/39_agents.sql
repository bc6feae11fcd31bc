-- The registry of agents (CX-16): register, disable, enable. A refusal is an answer (DP-3).

-- Register an agent, or give one that is registered another definition: what is not said is as for a new one. Whether
-- it is disabled is not touched.
create or replace function register_agent(agent text, name text default null, kind text default null,
    max_retries integer default null, max_crashes integer default null, backoff jsonb default null,
    max_payload_bytes integer default null, max_wait double precision default null,
    requires_approval boolean default false, for_tenant text default null, actor text default null)
returns setof agent
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(register_agent.for_tenant, register_agent.actor);
begin
    insert into agent as a (tenant, id, name, kind, max_retries, max_crashes, backoff, max_payload_bytes, max_wait,
                            requires_approval, created_at, updated_at)
    values (v_scope, register_agent.agent, coalesce(register_agent.name, register_agent.agent), register_agent.kind,
            register_agent.max_retries, register_agent.max_crashes, register_agent.backoff,
            register_agent.max_payload_bytes, register_agent.max_wait,
            coalesce(register_agent.requires_approval, false), v_now, v_now)
    on conflict (tenant, id) do update
       set name = excluded.name, kind = excluded.kind, max_retries = excluded.max_retries,
           max_crashes = excluded.max_crashes, backoff = excluded.backoff,
           max_payload_bytes = excluded.max_payload_bytes, max_wait = excluded.max_wait,
           requires_approval = excluded.requires_approval, updated_at = excluded.updated_at
     where (a.name, a.kind, a.max_retries, a.max_crashes, a.backoff, a.max_payload_bytes, a.max_wait, a.requires_approval)
           is distinct from (excluded.name, excluded.kind, excluded.max_retries, excluded.max_crashes, excluded.backoff,
                             excluded.max_payload_bytes, excluded.max_wait, excluded.requires_approval);
    return query select a.* from agent a where a.tenant = v_scope and a.id = register_agent.agent;
end $$;

-- Take no more work for an agent: nothing is enqueued for it, and what waits is not begun. Who did it first stands.
-- Transactions that found it enabled may still be open: call drain_agent after this has been committed, and it waits for
-- them. `drained` is always false, and stays for those who ask for it.
create or replace function disable_agent(agent text, reason text, actor text default null, for_tenant text default null)
returns table (id text, disabled_at timestamptz, disabled_by text, disabled_reason text, drained boolean, refused boolean,
               refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(disable_agent.for_tenant, disable_agent.actor);
begin
    if coalesce(disable_agent.reason, '') !~ '\S' then
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

-- Wait until every transaction has ended that may have found the agent enabled; false if that takes longer than the
-- lock_timeout of this function. Those that begin later find it disabled, and are not waited for.
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

-- The transactions that have let in or taken a job of some agent (agent_now, hold_back). Prepared ones are among them.
create or replace function agent_users() returns text[] language plpgsql set search_path from current as $$
begin
    return array(select l.virtualtransaction from pg_locks l
                  where l.locktype = 'relation' and l.relation = 'agent'::regclass and l.mode = 'RowShareLock' and l.granted
                    and l.database = (select d.oid from pg_database d where d.datname = current_database())
                    and l.pid is distinct from pg_backend_pid());
end $$;

-- Take work for it again, and bring back up to `want` jobs that were put off; the rest by resume_agent, or by themselves.
create or replace function enable_agent(agent text, want integer default 1000, for_tenant text default null, actor text default null)
returns table (id text, resumed integer, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
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

-- Bring back jobs that were put off while their agent was disabled; answers how many.
create or replace function resume_agent(agent text, want integer default 1000, for_tenant text default null)
returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
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
    perform rouse(q) from unnest(v_queues) q;
    return v_count;
end $$;

-- Of the rows that a claim has picked and locked, those it may take. The jobs of disabled agents are put off, and so are
-- others of theirs, that the next claims need not come by them: for ten minutes, and then a claim finds them again. So
-- nothing is lost if whoever enables the agent comes to nothing half-way. That they were put off is no step of theirs and
-- not in the ledger.
--
-- The lock on `agent` is for drain_agent, which waits for the transactions that hold it.
create or replace function hold_back(p_rows tid[], p_now timestamptz) returns tid[]
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
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
