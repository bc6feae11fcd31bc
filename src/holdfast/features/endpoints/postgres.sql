-- Inbound webhooks. They belong to one tenant and contain names of secrets, never the secrets.

-- Create or replace an endpoint, and return its row.
create or replace function set_endpoint(name text, provider text, secrets text[], event text default null, kind text default null,
                                    queue text default null, tolerance float8 default 300, enabled boolean default true,
                                    actor text default null, for_tenant text default null) returns setof endpoint
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_endpoint.for_tenant, set_endpoint.actor);
begin
    insert into endpoint as e (tenant, name, provider, secrets, event, kind, queue, tolerance, enabled, set_by, created_at, updated_at)
    values (v_scope, set_endpoint.name, set_endpoint.provider, set_endpoint.secrets, set_endpoint.event, set_endpoint.kind, set_endpoint.queue,
            set_endpoint.tolerance, set_endpoint.enabled, actor(), clock_now(), clock_now())
    on conflict (tenant, name) do update
       set provider = excluded.provider, secrets = excluded.secrets, event = excluded.event, kind = excluded.kind,
           queue = excluded.queue, tolerance = excluded.tolerance, enabled = excluded.enabled, set_by = excluded.set_by,
           updated_at = excluded.updated_at;
    return query select e.* from endpoint e where e.tenant = v_scope and e.name = set_endpoint.name;
end $$;

-- Delete an endpoint. Returns false if it does not exist.
create or replace function remove_endpoint(name text, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_endpoint.for_tenant, remove_endpoint.actor);
begin
    delete from endpoint e where e.tenant = v_scope and e.name = remove_endpoint.name;
    return found;
end $$;
