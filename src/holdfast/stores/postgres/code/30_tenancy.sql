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
                                   'switch', 'seal'] loop
        execute format('drop policy if exists everybodys on %I', v_table);
        execute format('create policy everybodys on %I for select using (tenant = ''*'' and (select scope()) is not null)', v_table);
    end loop;
    foreach v_table in array array['place', 'meter'] loop
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
