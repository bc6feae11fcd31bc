-- Pins: logins that may act for one tenant only. The rows of `login_pin` are compiled into pinned_tenant(), which scope()
-- calls; so every function and every policy restricts a pinned login to its tenant, and no other code has to know about pins.

-- Compile the rows into the function. Every name in its body is qualified: it runs with the caller's search path.
create or replace function compile_pins() returns void language plpgsql set search_path from current as $$
declare
    v_was  text := current_setting('holdfast.tenant', true);
    v_pins jsonb;
begin
    perform check_isolation();
    lock table login_pin in share row exclusive mode;   -- two concurrent changes would each miss the other's row
    perform set_config('holdfast.tenant', '*', true);
    if scope() is distinct from '*' then
        raise exception 'only the owner of the schema can compile pins' using errcode = 'ZH004';
    end if;
    select jsonb_object_agg(p.login, p.tenant) into v_pins from login_pin p;
    if v_pins is null then
        create or replace function pinned_tenant() returns text language sql stable return null::text;
    else
        -- Not inlined, unlike the function without pins: the list is then in a session's memory once, not once per plan.
        execute format('create or replace function pinned_tenant() returns text language plpgsql stable as %L', format(
            'begin return %L::pg_catalog.jsonb operator(pg_catalog.->>) session_user::pg_catalog.text; end', v_pins));
    end if;
    perform set_config('holdfast.tenant', coalesce(v_was, ''), true);
end $$;

create or replace function on_pins_change() returns trigger language plpgsql set search_path from current as $$
begin
    perform compile_pins();
    return null;
end $$;
create or replace trigger compile_pins after insert or update or delete or truncate on login_pin
    for each statement execute function on_pins_change();

do $$
begin
    perform compile_pins();
end $$;

-- Pin a login to a tenant, or change its pin. It applies from the next statement of its sessions on.
create or replace function pin_login(login text, to_tenant text, actor text default null) returns setof login_pin
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare v_role record;
begin
    perform enter('*', pin_login.actor);
    perform check_isolation();
    lock table login_pin in share row exclusive mode;
    select r.rolcanlogin as logs_in,
           r.rolsuper or r.rolbypassrls or pg_has_role(r.oid, (select c.relowner from pg_class c where c.oid = 'job_state'::regclass), 'member') as exempt
      into v_role from pg_roles r where r.rolname = pin_login.login;
    if not coalesce(v_role.logs_in, false) then
        raise exception 'there is no login %', pin_login.login
            using errcode = 'ZH074', hint = 'Create it first: create role … login. A role without LOGIN cannot be pinned.';
    end if;
    if v_role.exempt then
        raise exception 'login % owns the tables or bypasses row-level security: a pin would have no effect', pin_login.login
            using errcode = 'ZH075', hint = 'Use a login that was only granted a Holdfast role.';
    end if;
    return query
    insert into login_pin as p (login, tenant, set_by, created_at)
    values (pin_login.login, pin_login.to_tenant, actor(), clock_now())
    on conflict (login) do update set tenant = excluded.tenant, set_by = excluded.set_by, created_at = excluded.created_at
    returning p.*;
end $$;

-- Remove a login's pin. Returns false if there was none.
create or replace function unpin_login(login text, actor text default null) returns boolean
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
begin
    perform enter('*', unpin_login.actor);
    perform check_isolation();
    lock table login_pin in share row exclusive mode;
    delete from login_pin p where p.login = unpin_login.login;
    return found;
end $$;
