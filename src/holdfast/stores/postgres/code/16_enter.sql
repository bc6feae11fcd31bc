-- The first line of every gated function: bind this transaction to a tenant (or '*') and an actor, and answer
-- the scope. The functions compare it with each row themselves, so that tenants stay apart even where the
-- schema belongs to a superuser, for whom row-level security does not hold.
create or replace function enter(p_tenant text, p_actor text default null) returns text
language plpgsql set search_path from current as $$
declare
    v_scope text;
begin
    perform set_config('holdfast.tenant', coalesce(p_tenant, scope(), 'default'), true);
    if p_actor is not null then
        perform set_config('holdfast.actor', p_actor, true);
    end if;
    v_scope := scope();
    if v_scope is null then
        raise exception 'role % may not act for every tenant', caller()
            using errcode = 'ZH004', hint = 'Name a tenant, or use a role that was granted holdfast_executor or holdfast_admin.';
    end if;
    return v_scope;
end $$;

-- The same for whoever acts under a lease: its scope must be the one the lease was opened in, and its holder is
-- the actor. A lease that is not there settles nothing: the writes that follow compare the token row by row.
create or replace function act_under(p_lease uuid, p_tenant text) returns text
language plpgsql set search_path from current as $$
declare
    v_scope  text := enter(p_tenant);
    v_holder text;
begin
    select l.holder into v_holder from lease l where l.id = p_lease and l.tenant = v_scope;
    if not found then
        raise exception 'lease % is not known here', p_lease
            using errcode = 'ZH003', hint = 'Use the lease you were given, in the tenant it was opened for.';
    end if;
    perform set_config('holdfast.actor', v_holder, true);
    return v_scope;
end $$;
