-- Judges read other tables, and row-level security hides rows of other tenants from them. A statement can change the tenant
-- while it runs (`where … and set_config('holdfast.tenant', …)`), and a judge that looks for a reason to refuse would then find
-- none. So whatever was updated or deleted must belong to the tenant that is set when its judges have finished. This is told
-- from the rows themselves; no setting can make it answer otherwise.

-- Whether row-level security hides rows of this tenant at the moment. It never does from a superuser.
create or replace function hidden(p_tenant text, p_table regclass) returns boolean language sql stable
return scope() is distinct from '*' and scope() is distinct from p_tenant and row_security_active(p_table);

create or replace function judge_scope() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from gone g where hidden(g.tenant, tg_relid)
                                    -- What is counted for everybody is written in every scope (30_tenancy.sql).
                                    and not (g.tenant = '*' and tg_table_name in ('place', 'meter'))) then
        raise exception '%: the tenant was changed while the statement ran', tg_table_name
            using errcode = 'ZH002', hint = 'Set holdfast.tenant before the statement, and leave it alone until it has ended.';
    end if;
    return null;
end $$;

-- For every table of tenants' rows that has a judge, found in the catalogue. Not for updates of job_state, which are on the path
-- of every job: the trigger that writes the ledger looks after them (21_record_transition.sql). Nor for updates of api_token:
-- whoever presents a token may have it counted in any scope.
do $$
declare
    v_table text;
begin
    for v_table in
        select c.relname from pg_class c
         where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
           and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant')
           -- Not those that record actions: in a new database they come later.
           and exists (select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal and t.tgname not like 'record\_%'
                          or t.tgrelid = c.oid and t.tgname = 'record_transition')
    loop
        execute format('create or replace trigger judge_scope after delete on %I referencing old table as gone'
            ' for each statement execute function judge_scope()', v_table);
        if v_table not in ('job_state', 'api_token') then
            execute format('create or replace trigger judge_scope_kept after update on %I referencing old table as gone'
                ' for each statement execute function judge_scope()', v_table);
        end if;
    end loop;
end $$;
