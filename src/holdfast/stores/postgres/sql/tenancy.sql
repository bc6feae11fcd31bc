-- Row-level security on every table, for the owner too, failing closed. `scope()` in a sub-select is evaluated once per
-- statement, not once per row.
do $$
declare
    v_table text;
    v_check text;
begin
    for v_table, v_check in
        -- The same as for old rows. A new row is checked alone, and there each sub-select and function costs more than the
        -- comparison. Rows of a partition are checked by the policy of its table.
        select c.relname, case when not c.relispartition then
                   ' with check (case (select scope()) when tenant then true when ''*'' then true end)' end
          from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
    loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        execute format('drop policy if exists tenancy on %I', v_table);
        if exists (select from pg_attribute a where a.attrelid = v_table::regclass and a.attname = 'tenant') then
            execute format('create policy tenancy on %I using (tenant = (select scope()) or (select scope()) = ''*'')%s',
                v_table, v_check);
        else
            execute format('create policy tenancy on %I using (true)', v_table);  -- contains no tenant's data
        end if;
    end loop;
end $$;

-- A worker for every tenant is visible to each tenant: a caller for one tenant may see that it is alive (its token is not
-- granted). Otherwise the guards would treat its lease as ended.
drop policy if exists everybodys on lease;
create policy everybodys on lease for select using (tenant = '*' and (select scope()) is not null);

-- So are settings that apply to every tenant: limits, retention, reservations, pauses and queue settings. The counts for them
-- are written by the functions that claim and settle jobs; no role is granted access to them.
do $$
declare v_table text;
begin
    foreach v_table in array array['job_limit', 'reservation', 'queue_setting', 'payload_rule', 'retention', 'retention_pass',
                                   'pause', 'seal'] loop
        execute format('drop policy if exists everybodys on %I', v_table);
        execute format('create policy everybodys on %I for select using (tenant = ''*'' and (select scope()) is not null)', v_table);
    end loop;
    foreach v_table in array array['occupied_slot', 'rate_meter'] loop
        execute format('drop policy if exists everybodys on %I', v_table);
        execute format('create policy everybodys on %I using (tenant = ''*'' and (select scope()) is not null)', v_table);
    end loop;
end $$;

-- So are the executors.
drop policy if exists everybodys on executor;
create policy everybodys on executor for select using (tenant = '*' and (select scope()) is not null);

alter table job alter column id set default uuid7();
alter table job alter column tenant set default nullif(scope(), '*');
alter table job alter column enqueued_by set default actor();
alter table job alter column source_system set default 'sql';
alter table job alter column created_at set default clock_now();

-- A ledger row carries the id and the time of the transaction that writes it. The triggers ensure both; a row inserted another
-- way, by a foreign trigger, is refused. This is a policy because it becomes part of the cached plan: a trigger or a CHECK
-- would cost a tenth of a job. A clock that tests have stopped is not compared. Policies do not apply to a superuser; `audit
-- verify` finds such rows.
do $$
declare v_table text;
begin
    foreach v_table in array array['event', 'action'] loop
        execute format('drop policy if exists written_now on %I', v_table);
        execute format('create policy written_now on %I as restrictive for insert with check ('
            'xid = (select ledger_position())'
            ' and coalesce(abs(extract(epoch from at - (select clock_timestamp() + c.shift from clock c where c.stopped is null))) <= 60, true))', v_table);
    end loop;
end $$;

-- Guards read other tables, and row-level security hides rows of other tenants from them. A statement can change the tenant
-- while it runs (`where … and set_config('holdfast.tenant', …)`), and a guard that searches for a reason to refuse would then
-- find none. So every updated or deleted row must belong to the tenant that is set when its guards have finished. This is
-- derived from the rows themselves; no setting can change the result.

-- Whether row-level security currently hides rows of this tenant. It never does for a superuser.
create or replace function hidden(p_tenant text, p_table regclass) returns boolean language sql stable
return scope() is distinct from '*' and scope() is distinct from p_tenant and row_security_active(p_table);

create or replace function guard_scope() returns trigger language plpgsql set search_path from current as $$
begin
    if scope() = '*' then   -- nothing is hidden; and a purge of a million rows need not check each
        return null;
    end if;
    if exists (select from gone g where hidden(g.tenant, tg_relid)
                                    -- Counts for every tenant are written in every scope (tenancy.sql).
                                    and not (g.tenant = '*' and tg_table_name in ('occupied_slot', 'rate_meter'))) then
        raise exception '%: the tenant was changed while the statement ran', tg_table_name
            using errcode = 'ZH002',
                  hint = 'Set holdfast.tenant before the statement and do not change it until the statement has ended.';
    end if;
    return null;
end $$;

-- For every tenant table that has a guard, found in the catalogue. Not for updates of job_state, which are on the path of
-- every job: the trigger that writes the ledger checks them (transition.sql). Nor for updates of api_token: the use of a
-- presented token may be recorded in any scope.
do $$
declare v_table text;
begin
    for v_table in
        select c.relname from pg_class c
         where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
           and not c.relispartition   -- partitions refuse statements that name them
           and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant')
           -- Triggers that record an action or keep a column read no other table.
           and (c.relname in ('job_state', 'subscription', 'tenant', 'tenant_load') or exists (
               select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal
                  and t.tgname <> 'keep_fixed' and t.tgname not like E'record\\_%'))
    loop
        execute format('create or replace trigger guard_scope after delete on %I referencing old table as gone'
            ' for each statement execute function guard_scope()', v_table);
        if v_table not in ('job_state', 'api_token') then
            execute format('create or replace trigger guard_scope_kept after update on %I referencing old table as gone'
                ' for each statement execute function guard_scope()', v_table);
        end if;
    end loop;
end $$;
