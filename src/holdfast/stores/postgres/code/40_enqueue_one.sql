-- One job that has nothing but its kind, its place and its payload, as most have that come one at a time: no document to
-- be read, and nothing to be answered. The trigger of `job` judges it and gives it its state, as it does every other.
create or replace function enqueue_one(id uuid, kind text, queue text, payload json, priority smallint, max_retries smallint,
                                       max_crashes smallint, enqueued_by text, source_system text, for_tenant text)
returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_variable
declare
    v_tenant text := for_tenant;
begin
    if for_tenant <> '*' and for_tenant <> '' then
        v_tenant := set_config('holdfast.tenant', for_tenant, true);   -- which is all that enter() does for one tenant
    else
        v_tenant := enter(coalesce(for_tenant, nullif(scope(), '*'), 'default'));
    end if;
    insert into job (id, tenant, kind, queue, payload, priority, max_retries, max_crashes, enqueued_by, source_system, created_at)
    values (id, v_tenant, kind, queue, payload, priority, max_retries, max_crashes, enqueued_by, source_system,
            (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c));   -- as clock_now() says: here without a call
end $$;
