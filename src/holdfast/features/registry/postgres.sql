-- Registries: the kinds and event types that a deployment knows, and its policies for everything else. Both registries apply
-- to all tenants; agents are registered per tenant (features/agents). The policies are columns of `dispatch`, the row that
-- every enqueue and every exchange reads anyway: without a policy, nothing here is called.

-- Kinds that need no registration: the built-in ones (features/connectors, features/webhooks) and their aliases.
create or replace function built_in_kind(kind text) returns boolean language sql immutable
return regexp_replace(kind, E'^connector\\.', '') in ('http.request', 'webhook.deliver', 'report.generate');

-- Handle a name that is not registered: refuse it, or accept it with a warning. The first warning per name is kept for health
-- checks and lists; a tenant that invents names cannot fill the table.
create or replace function not_registered(p_tenant text, p_registry text, p_name text, p_policy text, p_now timestamptz)
returns void language plpgsql set search_path from current as $$
begin
    if p_policy = 'refuse' then
        raise exception '% % is not registered', p_registry, p_name
            using errcode = case p_registry when 'kind' then 'ZH068' else 'ZH069' end,
                  hint = case p_registry when 'kind' then 'Register it: register_kinds(…).' else 'Register it: set_agent(…).' end;
    end if;
    if exists (select from unregistered_name u where u.tenant = p_tenant and u.registry = p_registry and u.name = p_name)
       or (select count(*) from (select from unregistered_name u where u.tenant = p_tenant and u.registry = p_registry limit 1000) k) >= 1000 then
        return;
    end if;
    insert into unregistered_name (tenant, registry, name, first_at) values (p_tenant, p_registry, p_name, p_now)
    on conflict do nothing;
    raise warning '% % is not registered', p_registry, p_name using errcode = 'ZH071';
end $$;

-- Check new jobs against the policies. Called by on_job_insert while `dispatch.ruled` is true. Retries and notices of
-- approvals were accepted with the job that they belong to.
create or replace function registry_on_insert(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_rules record;
    v_row   record;
begin
    select d.unknown_kinds as kinds, d.unknown_agents as agents, d.tenant_required, d.required into v_rules from dispatch d;
    if v_rules.tenant_required then
        select j.kind into v_row from job j
         where j.id = any (p_jobs) and j.tenant = 'default' and not is_owed(j.id, j.retry_of) limit 1;
        if found then
            raise exception 'a tenant is required: job of kind % refused', v_row.kind
                using errcode = 'ZH072', hint = 'Name a tenant: for_tenant => …. The tenant `default` counts as none.';
        end if;
    end if;
    if v_rules.required <> '{}' then
        select j.tenant, j.kind, f.fact, f.code, f.hint into v_row
          from job j cross join lateral (values
               ('key', j.idempotency_key, 'ZH076', 'Pass a key: key => ….'),
               ('executor', j.executor, 'ZH077', 'Name an executor: executor => ….'),
               ('agent', j.agent, 'ZH078', 'Name an agent: agent => ….')) f(fact, value, code, hint)
         where j.id = any (p_jobs) and f.value is null and not built_in_kind(j.kind) and not is_owed(j.id, j.retry_of)
           and array[f.fact || ' *', f.fact || ' tenant:' || j.tenant, f.fact || ' kind:' || j.kind] && v_rules.required limit 1;
        if found then
            raise exception 'jobs of kind % in tenant % need %', v_row.kind, v_row.tenant,
                case v_row.fact when 'key' then 'an idempotency key' else 'an ' || v_row.fact end
                using errcode = v_row.code, hint = v_row.hint;
        end if;
    end if;
    if v_rules.kinds <> 'accept' then
        for v_row in
            select distinct j.tenant, j.kind from job j
             where j.id = any (p_jobs) and not built_in_kind(j.kind) and not is_owed(j.id, j.retry_of)
               and not exists (select from registered_kind k where k.name = j.kind) order by 1, 2
        loop
            perform not_registered(v_row.tenant, 'kind', v_row.kind, v_rules.kinds, p_now);
        end loop;
    end if;
    if v_rules.agents <> 'accept' then
        for v_row in
            select distinct j.tenant, j.agent from job j
             where j.id = any (p_jobs) and j.agent is not null and not is_owed(j.id, j.retry_of)
               and not exists (select from agent a where a.tenant = j.tenant and a.id = j.agent) order by 1, 2
        loop
            perform not_registered(v_row.tenant, 'agent', v_row.agent, v_rules.agents, p_now);
        end loop;
    end if;
end $$;

-- Return why an event is refused, or null. With the policy `warn` it is accepted and its name recorded.
create or replace function registry_on_event(p_tenant text, p_name text, p_data jsonb, p_now timestamptz, out reason text, out detail text)
language plpgsql set search_path from current as $$
declare
    v_policy text := (select d.unknown_events from dispatch d);
    v_type   registered_event;
begin
    if v_policy = 'accept' then
        return;
    end if;
    select t.* into v_type from registered_event t where t.name = p_name;
    if not found then
        if v_policy = 'warn' then
            perform not_registered(p_tenant, 'event type', p_name, v_policy, p_now);
            return;
        end if;
        reason := 'event_type_unregistered';
        detail := format('event type %s is not registered', p_name);
        return;
    end if;
    if v_type.schema is null or fits_form(p_data, v_type.schema, v_type.schema) then
        return;
    end if;
    detail := format('the data of event %s does not fit its schema%s', p_name, (
        select ': missing ' || string_agg(r, ', ') from jsonb_array_elements_text(list_in(v_type.schema, 'required')) r where not p_data ? r));
    if v_policy = 'warn' then
        raise warning '%', detail using errcode = 'ZH071';
        detail := null;
        return;
    end if;
    reason := 'event_data_invalid';
end $$;

-- Register kinds: [{"name": …, "description": …, "domain": …}]. Returns how many are new or have changed.
create or replace function register_kinds(kinds jsonb, actor text default null) returns integer
language plpgsql security definer set search_path from current as $$
declare v_count integer;
begin
    perform enter('*', nullif(register_kinds.actor, ''));
    if jsonb_typeof(register_kinds.kinds) is distinct from 'array' then
        raise exception 'register_kinds takes a JSON array of kinds' using errcode = 'ZH010';
    end if;
    insert into registered_kind as k (name, description, set_by, set_at, domain)
    select distinct on (r.name) r.name, r.description, actor(), clock_now(), r.domain
      from jsonb_to_recordset(register_kinds.kinds) as r(name text, description text, domain text) order by r.name
    on conflict (name) do update set description = excluded.description, set_by = excluded.set_by, set_at = excluded.set_at,
       domain = excluded.domain
     where (k.description, k.domain) is distinct from (excluded.description, excluded.domain);
    get diagnostics v_count = row_count;
    delete from unregistered_name u where u.registry = 'kind'
       and u.name in (select r ->> 'name' from jsonb_array_elements(register_kinds.kinds) r);
    return v_count;
end $$;

-- Remove a kind from the registry. Returns false if it was not registered.
create or replace function remove_kind(name text, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', nullif(remove_kind.actor, ''));
    delete from registered_kind k where k.name = remove_kind.name;
    return found;
end $$;

-- Register an event type or replace its definition, and return its row.
create or replace function set_event_type(name text, domain text default null, schema jsonb default null, description text default null,
                                          actor text default null) returns setof registered_event
language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', nullif(set_event_type.actor, ''));
    if jsonb_typeof(set_event_type.schema) <> 'object' then
        raise exception 'the schema of an event type must be a JSON object' using errcode = 'ZH010';
    end if;
    insert into registered_event as t (name, domain, schema, description, set_by, set_at)
    values (set_event_type.name, set_event_type.domain, set_event_type.schema, set_event_type.description, actor(), clock_now())
    on conflict (name) do update
       set domain = excluded.domain, schema = excluded.schema, description = excluded.description, set_by = excluded.set_by,
           set_at = excluded.set_at
     where (t.domain, t.schema, t.description) is distinct from (excluded.domain, excluded.schema, excluded.description);
    delete from unregistered_name u where u.registry = 'event type' and u.name = set_event_type.name;
    return query select t.* from registered_event t where t.name = set_event_type.name;
end $$;

-- Remove an event type from the registry. Returns false if it was not registered.
create or replace function remove_event_type(name text, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', nullif(remove_event_type.actor, ''));
    delete from registered_event t where t.name = remove_event_type.name;
    return found;
end $$;

-- The tenants and kinds whose jobs must have a fact: ["*"], ["tenant:acme", "kind:pay"].
create or replace function required_scopes(p_required text[], p_fact text) returns jsonb language sql immutable
return (select coalesce(jsonb_agg(substr(r, length(p_fact) + 2) order by r collate "C"), '[]') from unnest(p_required) r where starts_with(r, p_fact || ' '));

-- Return the policies of the deployment as JSON.
create or replace function policies() returns jsonb language plpgsql stable security definer set search_path from current as $$
begin
    return (select jsonb_build_object('unknown_kinds', d.unknown_kinds, 'unknown_agents', d.unknown_agents,
                                      'unknown_event_types', d.unknown_events,
                                      'empty_executors', case when d.listed_only then 'nobody' else 'everyone' end,
                                      'tenant_required', d.tenant_required, 'pending_includes_running', d.running_counts,
                                      'key_required', required_scopes(d.required, 'key'),
                                      'executor_required', required_scopes(d.required, 'executor'),
                                      'agent_required', required_scopes(d.required, 'agent'))
              from dispatch d);
end $$;

-- Set the policies that `what` contains; the others do not change. Returns all policies.
create or replace function set_policies(what jsonb, actor text default null) returns jsonb
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_was jsonb := policies();
    v_now jsonb := v_was || set_policies.what;
    v_bad text;
    v_required text[];
begin
    perform enter('*', nullif(set_policies.actor, ''));
    select p.key into v_bad from jsonb_each(v_now) p
     where not case when p.key like E'unknown\\_%' then v_was ? p.key and p.value in ('"accept"', '"warn"', '"refuse"')
                    when p.key = 'empty_executors' then p.value in ('"everyone"', '"nobody"')
                    when p.key in ('key_required', 'executor_required', 'agent_required')
                    then jsonb_typeof(p.value) = 'array' and not p.value @? 'strict $[*] ? (@.type() <> "string" || !(@ like_regex "^([*]|(tenant|kind):.+)$"))'
                    else v_was ? p.key and jsonb_typeof(p.value) = 'boolean' end limit 1;
    if found then
        raise exception 'policy % cannot be %', v_bad, v_now -> v_bad using errcode = 'ZH010',
            hint = 'unknown_kinds, unknown_agents and unknown_event_types: accept, warn, refuse; empty_executors: everyone, nobody;'
                   ' tenant_required and pending_includes_running: true, false; key_required, executor_required, agent_required:'
                   ' ["*"], ["tenant:…", "kind:…"].';
    end if;
    v_required := array(select f || ' ' || r from unnest(array['key', 'executor', 'agent']) f,
                               jsonb_array_elements_text(v_now -> (f || '_required')) r order by 1);
    if v_now = v_was then
        return v_now;
    end if;
    update dispatch d
       set unknown_kinds = v_now ->> 'unknown_kinds', unknown_agents = v_now ->> 'unknown_agents',
           unknown_events = v_now ->> 'unknown_event_types', listed_only = v_now ->> 'empty_executors' = 'nobody',
           tenant_required = (v_now ->> 'tenant_required')::boolean, running_counts = (v_now ->> 'pending_includes_running')::boolean,
           required = v_required,
           ruled = d.ruled or v_now ->> 'unknown_kinds' <> 'accept' or v_now ->> 'unknown_agents' <> 'accept'
                   or (v_now ->> 'tenant_required')::boolean or v_required <> '{}';
    if v_now -> 'pending_includes_running' <> v_was -> 'pending_includes_running' then
        update tenant_load l set counted_at = 'epoch' where true;   -- forces a new count
    end if;
    perform note_action('*', 'change', 'policies', p.key, jsonb_build_object(p.key, jsonb_build_array(v_was -> p.key, p.value)))
       from jsonb_each(v_now) p where p.value <> v_was -> p.key;
    return v_now;
end $$;

-- Every tenant may read the registries that its jobs are checked against (tenancy.sql).
drop policy if exists everybodys on registered_kind;
create policy everybodys on registered_kind for select using (tenant = '*' and (select scope()) is not null);
drop policy if exists everybodys on registered_event;
create policy everybodys on registered_event for select using (tenant = '*' and (select scope()) is not null);
