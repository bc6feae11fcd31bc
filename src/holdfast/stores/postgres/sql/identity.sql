-- Return a new id for hand-written inserts: a UUIDv7, which sorts by creation time like the ids of the library.
create or replace function uuid7() returns uuid language sql volatile
return encode(
    -- Version 4 becomes 7. One random uuid: each call may open a device.
    set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                            from 1 for 6), 52, 1), 53, 1),
    'hex')::uuid;

-- Return the role that is calling. Inside a SECURITY DEFINER function current_user is the owner; the role setting and
-- session_user still name the caller.
create or replace function caller() returns name language sql stable
return coalesce(nullif(current_setting('role', true), 'none'), session_user)::name;

-- Return the actor that this transaction's changes are recorded under.
create or replace function actor() returns text language sql stable
return coalesce(nullif(current_setting('holdfast.actor', true), ''), caller()::text);

-- Does nothing. A role that may execute this function may use every tenant at once (tenant '*').
create or replace function every_tenant() returns void language sql immutable return null::void;

-- The tenant that the login is pinned to; null for a login without a pin. Pins are rows of `login_pin`, compiled into this
-- function whenever they change (pins.sql): every statement calls scope(), and a table lookup would cost more than the rest of
-- it. Without pins the planner removes the call. It uses session_user, which neither SET ROLE nor a setting nor a SECURITY
-- DEFINER function changes.
do $$
begin
    if to_regprocedure('pinned_tenant()') is null then
        create function pinned_tenant() returns text language sql stable return null::text;
    end if;
end $$;

-- Return the tenant of this transaction, '*' for every tenant, or null, which sees no row. holdfast.tenant is set with
-- set_config(…, true), for one transaction only. A pinned login has its own tenant or none.
create or replace function scope() returns text language sql stable
return case
    when pinned_tenant() is null then
        case current_setting('holdfast.tenant', true)
            when '*' then case when has_function_privilege(caller(), 'every_tenant()'::regprocedure, 'execute') then '*' end
            else nullif(current_setting('holdfast.tenant', true), '')
        end
    when coalesce(nullif(current_setting('holdfast.tenant', true), ''), pinned_tenant()) = pinned_tenant() then pinned_tenant()
end;

-- Return the current time by the database server's clock, which all decisions use. Tests can shift or stop it through the
-- table `clock`.
create or replace function clock_now() returns timestamptz language sql volatile
begin atomic
    select coalesce(stopped, clock_timestamp() + shift) from clock;
end;

-- Move the clock, for tests. Only the owner may: no role can execute it.
create or replace function set_clock(p_shift interval, p_stopped timestamptz) returns void
language plpgsql set search_path from current as $$
begin
    update clock c set shift = p_shift, stopped = p_stopped;
end $$;

-- Refuse a transaction that keeps one snapshot: after it has waited for a lock it does not see what the holder committed, and
-- would count without it. Called by every function that locks first and then reads what the lock protects. A lock on a row that
-- every holder changes needs no check: there PostgreSQL reports the change itself (40001).
create or replace function check_isolation() returns void language plpgsql set search_path from current as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception 'this operation needs read committed, and the transaction is %', current_setting('transaction_isolation')
            using errcode = 'ZH080', hint = 'Call it in another transaction: begin isolation level read committed.';
    end if;
end $$;

-- Set the tenant (or '*') and the actor of this transaction, and return the scope. Every public function calls this first. The
-- functions compare it with each row themselves, so that tenants stay separate even if the schema belongs to a superuser, who
-- bypasses row-level security.
create or replace function enter(p_tenant text, p_actor text default null) returns text
language plpgsql set search_path from current as $$
declare v_scope text;
begin
    if current_setting('session_replication_role') = 'replica' then
        -- Our triggers do not fire: a new job would have no state, and a change no event.
        raise exception 'session_replication_role is replica, under which triggers do not fire'
            using errcode = 'ZH081', hint = 'Set it to origin: alter role … reset session_replication_role.';
    end if;
    perform set_config('holdfast.tenant', coalesce(p_tenant, scope(), 'default'), true);
    if p_actor is not null then
        perform set_config('holdfast.actor', p_actor, true);
    end if;
    v_scope := scope();
    if v_scope is null and pinned_tenant() is not null then
        raise exception 'login % is pinned to tenant % and may not act for %', session_user, pinned_tenant(),
                case p_tenant when '*' then 'every tenant' else 'tenant ' || coalesce(p_tenant, current_setting('holdfast.tenant', true)) end
            using errcode = 'ZH073', hint = 'Name its own tenant, use another login, or remove the pin: select unpin_login(…).';
    end if;
    if v_scope is null then
        raise exception 'role % may not act for every tenant', caller()
            using errcode = 'ZH004', hint = format('Workers need holdfast_executor: grant holdfast_executor to %s. Administration needs '
                'holdfast_admin. Producers and viewers name one tenant.', caller());
    end if;
    return v_scope;
end $$;

-- The same for a caller that acts under a lease: its scope must be the one the lease was opened in, and its holder is the
-- actor. A lease that does not exist settles nothing: the writes that follow compare the token row by row.
create or replace function act_under(p_lease uuid, p_tenant text) returns text
language plpgsql set search_path from current as $$
declare
    v_scope  text := enter(p_tenant);
    v_holder text;
begin
    select l.holder into v_holder from lease l where l.id = p_lease and l.tenant = v_scope;
    if not found then
        raise exception 'unknown lease %', p_lease
            using errcode = 'ZH003', hint = 'Use the lease you were given, in the tenant it was opened for.';
    end if;
    perform set_config('holdfast.actor', v_holder, true);
    return v_scope;
end $$;
