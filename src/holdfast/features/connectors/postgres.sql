-- Connector settings. They belong to one tenant and contain names of secrets, never the secrets: values that look like a
-- secret are refused for every writer.

create or replace function guard_connector() returns trigger language plpgsql set search_path from current as $$
declare v_header text;
begin
    select h.key into v_header from jsonb_each(new.headers) h
     where case jsonb_typeof(h.value)
               when 'string' then h.key ~* '(auth|cookie|token|secret|passw|credential|key)'
                               or h.value #>> '{}' ~* E'^\\s*(bearer|basic)\\s+\\S{8}'
               when 'object' then coalesce(h.value ->> 'secret', '') !~ '^[A-Z][A-Z0-9_]{0,99}$'
                               or length(coalesce(h.value ->> 'prefix', '')) > 20
               else true end
     limit 1;
    if found then
        raise exception 'secret in settings: the header % contains a secret', v_header
            using errcode = 'ZH064', hint = 'Refer to the secret by name: {"secret": "NAME"}.';
    end if;
    if exists (select from unnest(new.secrets) s where s is null or s !~ '^[A-Z][A-Z0-9_]{0,99}$') then
        raise exception 'secret in settings: the list contains a value that is not the name of a secret'
            using errcode = 'ZH064', hint = 'Names are in capital letters, such as RATES_TOKEN.';
    end if;
    if cardinality(new.hosts) = 0 and (cardinality(new.secrets) > 0 or exists (
        select from jsonb_each(new.headers) h where jsonb_typeof(h.value) = 'object')) then
        raise exception 'secret in settings: secrets are sent only to listed hosts'
            using errcode = 'ZH064', hint = 'List the hosts that may receive the secrets.';
    end if;
    return new;
end $$;
create or replace trigger guard_connector before insert or update on connector for each row execute function guard_connector();

-- Create or replace a connector's settings, and return its row. `secrets` are names of secrets; values that look like a secret
-- are refused.
create or replace function set_connector(name text, hosts text[] default '{}', headers jsonb default '{}', secrets text[] default '{}',
                                         timeout float8 default null, max_bytes integer default null, enabled boolean default true,
                                         actor text default null, for_tenant text default null) returns setof connector
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_connector.for_tenant, set_connector.actor);
begin
    insert into connector as c (tenant, name, enabled, hosts, headers, secrets, timeout, max_bytes, set_by, created_at, updated_at)
    values (v_scope, set_connector.name, set_connector.enabled, set_connector.hosts, set_connector.headers, set_connector.secrets,
            set_connector.timeout, set_connector.max_bytes, actor(), clock_now(), clock_now())
    on conflict (tenant, name) do update
       set enabled = excluded.enabled, hosts = excluded.hosts, headers = excluded.headers, secrets = excluded.secrets,
           timeout = excluded.timeout, max_bytes = excluded.max_bytes, set_by = excluded.set_by, updated_at = excluded.updated_at;
    return query select c.* from connector c where c.tenant = v_scope and c.name = set_connector.name;
end $$;

-- Delete a connector. Returns false if it does not exist.
create or replace function remove_connector(name text, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_connector.for_tenant, remove_connector.actor);
begin
    delete from connector c where c.tenant = v_scope and c.name = remove_connector.name;
    return found;
end $$;
