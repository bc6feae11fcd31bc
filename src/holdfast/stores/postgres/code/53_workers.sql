-- Who works just now, what for, and how many jobs each has in hand: for whoever watches. The tokens by which a worker holds
-- its jobs are not shown, and of other tenants' jobs nothing but how many.
create or replace function live_workers(most integer default 200, for_tenant text default null)
returns table (holder text, label text, tenant text, queues text[], slots integer, running bigint, opened_at timestamptz)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_scope text := enter(live_workers.for_tenant);
    v_now   timestamptz := clock_now();
begin
    perform set_config('holdfast.tenant', '*', true);
    if scope() is null then
        perform set_config('holdfast.tenant', v_scope, true);
    end if;
    return query
    select w.holder, w.name, w.tenant, w.queues, w.slots,
           (select count(*) from job_state s where s.lease = w.id and s.state in ('leased', 'in_progress')), w.opened_at
      from (select l.* from lease l
             where l.ended_at is null and l.until > v_now and (v_scope = '*' or l.tenant in (v_scope, '*'))
             order by l.opened_at, l.id limit least(live_workers.most, 1000)) w;
    perform set_config('holdfast.tenant', v_scope, true);
end $$;
