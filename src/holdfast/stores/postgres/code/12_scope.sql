-- Whoever may execute this function may ask for every tenant at once (tenant '*'). It does nothing.
create or replace function every_tenant() returns void language sql immutable return null::void;

-- The tenant of this transaction, '*' for every tenant, or null: and null sees no row (JF-2).
-- holdfast.tenant is set with set_config(…, true), for one transaction only.
create or replace function scope() returns text language sql stable
return case nullif(current_setting('holdfast.tenant', true), '')
    when '*' then case when has_function_privilege(caller(), 'every_tenant()'::regprocedure, 'execute') then '*' end
    else nullif(current_setting('holdfast.tenant', true), '')
end;
