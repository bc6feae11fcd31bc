-- Row-level security on every table, for the owner too, failing closed (JF-1, JF-2).
-- `scope()` in a sub-select is asked once a statement, not once a row.
do $$
declare
    v_table text;
begin
    for v_table in
        select c.relname from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
    loop
        execute format('alter table %I enable row level security', v_table);
        execute format('alter table %I force row level security', v_table);
        execute format('drop policy if exists tenancy on %I', v_table);
        if exists (select from pg_attribute a where a.attrelid = v_table::regclass and a.attname = 'tenant') then
            execute format('create policy tenancy on %I using (tenant = (select scope()) or (select scope()) = ''*'')', v_table);
        else
            execute format('create policy tenancy on %I using (true)', v_table);  -- holds nothing of anybody's
        end if;
    end loop;
end $$;

-- A worker for every tenant is no tenant's secret: whoever acts for one may see that it is alive (its token is
-- not granted). Without this the judges would take its lease for one that has ended.
drop policy if exists everybodys on lease;
create policy everybodys on lease for select using (tenant = '*' and (select scope()) is not null);

-- Nor is what everybody is held to: its limits, for how long jobs are kept, what is reserved from all or paused, and how queues are kept. What is counted for it
-- is written by whoever takes and ends jobs, through functions; nobody is granted a look at it.
do $$
declare
    v_table text;
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

-- Nor is who may execute.
drop policy if exists everybodys on executor;
create policy everybodys on executor for select using (tenant = '*' and (select scope()) is not null);

alter table job alter column id set default uuid7();
alter table job alter column tenant set default nullif(scope(), '*');
alter table job alter column enqueued_by set default actor();
alter table job alter column source_system set default 'sql';
alter table job alter column created_at set default clock_now();

-- A row of the ledger is of the transaction that writes it, and of its time. The triggers see to both; a row that comes in another
-- way, from somebody's own trigger, is refused. It is a policy because it is a part of the plan, which is kept: a trigger or a
-- CHECK would cost a tenth of a job. A clock that tests have stopped is not compared. A superuser is under no policy; `audit verify` finds such rows.
do $$
declare
    v_table text;
begin
    foreach v_table in array array['event', 'action'] loop
        execute format('drop policy if exists written_now on %I', v_table);
        execute format('create policy written_now on %I as restrictive for insert with check ('
            'xid = (select pg_current_xact_id()::text::bigint)'
            ' and coalesce(abs(extract(epoch from at - (select clock_timestamp() + c.shift from clock c where c.stopped is null))) <= 60, true))', v_table);
    end loop;
end $$;

-- Judges read other tables, and row-level security hides rows of other tenants from them. A statement can change the tenant
-- while it runs (`where … and set_config('holdfast.tenant', …)`), and a judge that looks for a reason to refuse would then find
-- none. So whatever was updated or deleted must belong to the tenant that is set when its judges have finished. This is told
-- from the rows themselves; no setting can make it answer otherwise.

-- Whether row-level security hides rows of this tenant at the moment. It never does from a superuser.
create or replace function hidden(p_tenant text, p_table regclass) returns boolean language sql stable
return scope() is distinct from '*' and scope() is distinct from p_tenant and row_security_active(p_table);

create or replace function judge_scope() returns trigger language plpgsql set search_path from current as $$
begin
    if scope() = '*' then   -- nothing is hidden; and a purge of a million rows need not ask for each
        return null;
    end if;
    if exists (select from gone g where hidden(g.tenant, tg_relid)
                                    -- What is counted for everybody is written in every scope (tenancy.sql).
                                    and not (g.tenant = '*' and tg_table_name in ('occupied_slot', 'rate_meter'))) then
        raise exception '%: the tenant was changed while the statement ran', tg_table_name
            using errcode = 'ZH002', hint = 'Set holdfast.tenant before the statement, and leave it alone until it has ended.';
    end if;
    return null;
end $$;

-- For every table of tenants' rows that has a judge, found in the catalogue. Not for updates of job_state, which are on the path
-- of every job: the trigger that writes the ledger looks after them (transition.sql). Nor for updates of api_token:
-- whoever presents a token may have it counted in any scope.
do $$
declare
    v_table text;
begin
    for v_table in
        select c.relname from pg_class c
         where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
           and not c.relispartition   -- partitions refuse statements that name them
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
