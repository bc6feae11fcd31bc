-- How many jobs of a tenant may wait (JF-12). Waiting is queued or retry_waiting, whatever it waits for there.
--
-- Only for tenants with a cap is anything counted. The number is kept in `tenant_load`: whoever enqueues holds its row,
-- which puts those who enqueue for one tenant in line, so that two cannot both take the last place. Steps of jobs must not
-- wait in that line, behind somebody's open transaction: they leave a row of `pending_change` (record_transition), and
-- the next who enqueues adds those up. Once a minute, and before a job is refused, they are counted one by one, by index:
-- a transaction that was open when the cap was set has left no change behind.
create or replace function waits(p_state state) returns boolean language sql immutable
return p_state in ('queued', 'retry_waiting');

create or replace function count_pending(p_tenant text, out pending bigint, out changes integer)
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
begin
    -- In one statement: a step that has been made is in the count, and its change is gone; or neither.
    with gone as (delete from pending_change c where c.tenant = p_tenant returning 1)
    select (select count(*) from job_state s where s.tenant = p_tenant and s.state in ('queued', 'retry_waiting')
               and s.state not in ('leased', 'in_progress')),   -- which is what the index says
           (select count(*) from gone)
      into pending, changes;
end $$;

-- These jobs come in for a tenant; `p_free` of them cannot be refused. Called before they have their states.
create or replace function hold_to_cap(p_tenant text, p_jobs integer, p_free integer, p_kind text, p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_cap     integer;
    v_pending bigint;
    v_counted timestamptz;
begin
    select t.max_pending into v_cap from tenant t where t.tenant = p_tenant;
    if v_cap is null then
        return;
    end if;
    select l.pending, l.counted_at into v_pending, v_counted from tenant_load l where l.tenant = p_tenant for update;
    if not found then
        insert into tenant_load (tenant, pending, counted_at) values (p_tenant, 0, 'epoch') on conflict do nothing;
        select l.pending, l.counted_at into v_pending, v_counted from tenant_load l where l.tenant = p_tenant for update;
    end if;
    if v_counted < p_now - interval '60 s' or v_counted > p_now then
        select c.pending into v_pending from count_pending(p_tenant) c;
        v_counted := p_now;
    else
        with gone as (delete from pending_change c where c.tenant = p_tenant returning c.change)
        select v_pending + coalesce(sum(g.change), 0) into v_pending from gone g;
    end if;
    if v_pending + p_jobs > v_cap and p_jobs > p_free and v_counted < p_now - interval '1 s' then
        select c.pending into v_pending from count_pending(p_tenant) c;
        v_counted := p_now;
    end if;
    if v_pending + p_jobs > v_cap and p_jobs > p_free then
        raise exception 'tenant % is full: % of its jobs wait and % may; % of kind % refused', p_tenant, v_pending, v_cap,
                p_jobs, p_kind
            using errcode = 'ZH057', hint = 'Enqueue again when some have run, or raise the cap: set_tenant(…).';
    end if;
    update tenant_load l set pending = v_pending + p_jobs, counted_at = v_counted where l.tenant = p_tenant;
end $$;

-- A retry was accepted with its first try, and a question to people is part of the job that asks (give_notice): neither is
-- refused. Not a setting and not a field of the job says so: both can be written by whoever enqueues.
drop function if exists is_owed(text, text, text, uuid, uuid);
create or replace function is_owed(p_job uuid, p_retry_of uuid) returns boolean
language plpgsql stable set search_path from current as $$
begin
    return p_retry_of is not null or exists (select from owed o where o.job_id = p_job);
end $$;
