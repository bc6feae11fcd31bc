-- Maximum number of waiting jobs of a tenant. Waiting means queued or retry_waiting, for whatever reason. With the policy
-- `pending_includes_running`, jobs held by a worker count too.
--
-- Jobs are counted only for tenants with a cap. The count is in `tenant_load`: an enqueue locks its row, which serialises the
-- enqueues of one tenant, so that two cannot both take the last slot. Transitions of jobs must not wait for that lock, behind
-- an open transaction: they insert a row into `pending_change` (record_transition), and the next enqueue adds those up. Once a
-- minute, and before a job is refused, the jobs are counted by index: a transaction that was open when the cap was set has not
-- recorded its changes.
create or replace function count_pending(p_tenant text, out pending bigint, out changes integer)
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
begin
    -- One statement: either the count contains a transition and its change is deleted, or neither.
    with gone as (delete from pending_change c where c.tenant = p_tenant returning 1)
    select (select count(*) from job_state s where s.tenant = p_tenant and s.state in ('queued', 'retry_waiting')
               and s.state not in ('leased', 'in_progress'))   -- the predicate of the index
           + case when (select d.running_counts from dispatch d)
                  then (select count(*) from job_state s where s.tenant = p_tenant and s.state in ('leased', 'in_progress'))
                  else 0 end,
           (select count(*) from gone)
      into pending, changes;
end $$;

-- Record by how many the waiting jobs of each tenant changed. Called by record_transition while any tenant has a cap.
create or replace function tenants_on_transition(p_tenants text[], p_changes integer[]) returns void
language plpgsql set search_path from current as $$
begin
    insert into pending_change (tenant, change)
    select u.tenant, u.change from unnest(p_tenants, p_changes) as u(tenant, change)
     where u.tenant in (select k.tenant from tenant k where k.max_pending is not null);
end $$;

-- Check new jobs against the caps of their tenants. Called by on_job_insert before the jobs have their states.
create or replace function tenants_on_insert(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
begin
    perform enforce_cap(t.tenant, t.jobs, t.owed, t.kind, p_now) from (
        select j.tenant, count(*)::integer as jobs, min(j.kind) as kind,
               count(*) filter (where is_owed(j.id, j.retry_of))::integer as owed
          from job j where j.id = any (p_jobs) and j.tenant in (select k.tenant from tenant k where k.max_pending is not null)
         group by j.tenant order by j.tenant) t;
end $$;

-- Count new jobs of one tenant; `p_free` of them cannot be refused.
create or replace function enforce_cap(p_tenant text, p_jobs integer, p_free integer, p_kind text, p_now timestamptz) returns void
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
        raise exception 'tenant % has % waiting jobs and may have %: % of kind % refused', p_tenant, v_pending, v_cap,
                p_jobs, p_kind
            using errcode = 'ZH057', hint = 'Enqueue again later, or raise the limit: set_tenant(…).';
    end if;
    update tenant_load l set pending = v_pending + p_jobs, counted_at = v_counted where l.tenant = p_tenant;
end $$;

-- Retries were accepted with their first attempt, and a notice of an approval is part of the job that needs it (enqueue_notice):
-- neither is refused. Neither a setting nor a field of the job decides this, because the enqueuing client can write both.
create or replace function is_owed(p_job uuid, p_retry_of uuid) returns boolean
language plpgsql stable set search_path from current as $$
begin
    return p_retry_of is not null or exists (select from owed o where o.job_id = p_job);
end $$;

-- Tenant registry. A tenant need not be registered; none of this applies to its jobs then.

-- Set the fields that `what` contains: {"title", "max_pending", "weight", "max_running", "rate", "per", "burst"}; null removes
-- one, and the others do not change. Maximum running jobs and rate become a limit of scope `tenant`.
create or replace function set_tenant(name text, what jsonb, actor text default null) returns boolean
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(set_tenant.name, set_tenant.actor);
    v_limit job_limit;
begin
    insert into tenant as t (tenant, title, max_pending, weight, set_by, created_at, updated_at)
    values (v_scope, what ->> 'title', (what ->> 'max_pending')::integer, (what ->> 'weight')::integer, actor(), v_now, v_now)
    on conflict (tenant) do update
       set title = case when what ? 'title' then excluded.title else t.title end,
           max_pending = case when what ? 'max_pending' then excluded.max_pending else t.max_pending end,
           weight = case when what ? 'weight' then excluded.weight else t.weight end,
           set_by = excluded.set_by, updated_at = excluded.updated_at;
    if what ->> 'max_pending' is not null then
        -- Forces a new count: changes were not recorded while there was no cap.
        insert into tenant_load as l (tenant, pending, counted_at) values (v_scope, 0, 'epoch')
        on conflict (tenant) do update set counted_at = 'epoch';
        update dispatch d set ruled = true, capped = true where not (d.ruled and d.capped);
    end if;
    if what ? 'max_running' or what ? 'rate' then
        select l.* into v_limit from job_limit l where l.tenant = v_scope and l.scope = 'tenant' and l.name = v_scope;
        if what ? 'max_running' then
            v_limit.concurrency := (what ->> 'max_running')::integer;
        end if;
        if what ? 'rate' then
            v_limit.rate := (what ->> 'rate')::integer;
            v_limit.per := (what ->> 'per')::float8;
            v_limit.burst := (what ->> 'burst')::integer;
        end if;
        if v_limit.concurrency is null and v_limit.rate is null then
            perform remove_limit('tenant', v_scope, set_tenant.actor, v_scope);
        else
            v_limit.tenant := v_scope;
            v_limit.scope := 'tenant';
            v_limit.name := v_scope;
            perform put_limit(v_limit);
        end if;
    end if;
    if what ->> 'weight' is not null and (select d.fair is null and d.fair_auto from dispatch d) then
        perform set_fair(array['*'], set_tenant.actor);
    end if;
    return true;
end $$;

-- Delete a tenant's settings. Its jobs stay, and are no longer held back by them.
create or replace function remove_tenant(name text, actor text default null) returns boolean
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare
    v_scope text := enter(remove_tenant.name, remove_tenant.actor);
    v_found boolean;
begin
    delete from tenant t where t.tenant = v_scope;
    v_found := found;
    if v_found then
        perform remove_limit('tenant', v_scope, remove_tenant.actor, v_scope);
        delete from tenant_load l where l.tenant = v_scope;
        delete from pending_change c where c.tenant = v_scope;
    end if;
    return v_found;
end $$;

-- Set which queues tenants share fairly: a list of queues, '*' for all, '*' and '-mail' for all but mail, null for none.
-- Without a choice, all queues are shared once a second tenant has jobs (share_when_needed). This creates the index that fair
-- sharing needs, and writers wait meanwhile (about a second per million jobs). To create it without blocking, do so
-- beforehand:
--     create index concurrently fair on job_state (queue, tenant, priority desc, position, id) where state = 'queued' and due_at is null
create or replace function set_fair(queues text[], actor text default null) returns text[]
language plpgsql security definer set search_path from current set lock_timeout = '20s' as $$
declare v_was jsonb := (select to_jsonb(d.fair) from dispatch d);
begin
    perform enter('*', set_fair.actor);
    if v_was is distinct from to_jsonb(nullif(set_fair.queues, '{}')) then
        perform note_action('*', 'change', 'tenants', 'shared queues',
                            jsonb_build_object('fair', jsonb_build_array(v_was, to_jsonb(nullif(set_fair.queues, '{}')))));
    end if;
    if coalesce(cardinality(set_fair.queues), 0) = 0 then
        perform stop_dispatch();   -- no claim in progress uses the index any more
        update dispatch d set fair = null, fair_auto = false where d.fair is not null or d.fair_auto;
        drop index if exists fair;
        delete from fair_place where true;
        return null;
    end if;
    if to_regclass('fair') is null then
        create index fair on job_state (queue, tenant, priority desc, position, id) where state = 'queued' and due_at is null;
    end if;
    update dispatch d set fair = set_fair.queues, fair_auto = false where d.fair is distinct from set_fair.queues or d.fair_auto;
    perform notify_listeners('');
    return set_fair.queues;
end $$;

-- Set whether only registered tenants may enqueue jobs. Jobs that are already waiting still run.
create or replace function set_registered_only(only_registered boolean, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
begin
    perform enter('*', set_registered_only.actor);
    update dispatch d set registered = only_registered, ruled = d.ruled or only_registered where d.registered <> only_registered;
    if found then
        perform note_action('*', 'change', 'tenants', 'registered only',
                            jsonb_build_object('registered', jsonb_build_array(not only_registered, only_registered)));
    end if;
    return found;
end $$;

-- Return whether only registered tenants may enqueue jobs.
create or replace function registered_only() returns boolean
language plpgsql stable security definer set search_path from current as $$
begin
    return (select d.registered from dispatch d);
end $$;

-- Refuse new jobs of unregistered tenants where only registered ones may have jobs. Called by on_job_insert.
create or replace function registration_on_insert(p_jobs uuid[]) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
begin
    if (select d.registered from dispatch d) then
        perform refuse_unregistered(j.tenant, j.kind) from job j
          where j.id = any (p_jobs) and not exists (select from tenant t where t.tenant = j.tenant)
            and not is_owed(j.id, j.retry_of) limit 1;
    end if;
end $$;

create or replace function refuse_unregistered(p_tenant text, p_kind text) returns void language plpgsql as $$
begin
    raise exception 'tenant % is not registered: job of kind % refused', p_tenant, p_kind
        using errcode = 'ZH067', hint = 'Register it: set_tenant(…), or holdfast tenants set.';
end $$;

-- Return the queues that tenants share fairly, or that they will share once a second tenant has jobs.
create or replace function fair_queues() returns text[] language plpgsql stable security definer set search_path from current as $$
begin
    return (select case when d.fair_auto then '{*}' else d.fair end from dispatch d);
end $$;

-- Return the position of a job in a fairly shared queue: how many jobs of its own tenant are ahead of it, and how many tenants
-- have waiting jobs there, both counted up to `most`. No row: the job is not waiting to be claimed, or the queue is not
-- shared.
create or replace function turn_of(job uuid, most integer default 1000, for_tenant text default null)
returns table (ahead integer, tenants integer, weight integer) language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
declare
    v_scope text := enter(turn_of.for_tenant);
    v_job   record;
    v_fair  text[] := (select d.fair from dispatch d);
begin
    select s.tenant, s.queue, s.priority, s.position, s.id into v_job from job_state s
     where s.id = turn_of.job and (v_scope = '*' or s.tenant = v_scope) and s.state = 'queued' and s.due_at is null;
    if not found or v_fair is null or not in_shares(v_job.queue, v_fair) then
        return;
    end if;
    select count(*) into ahead from (
        (select 1 from job_state s
          where s.queue = v_job.queue and s.state = 'queued' and s.due_at is null
            and s.tenant >= v_job.tenant and s.tenant <= v_job.tenant and s.priority > v_job.priority
          order by s.tenant, s.priority desc, s.position, s.id limit turn_of.most)
        union all
        (select 1 from job_state s
          where s.queue = v_job.queue and s.state = 'queued' and s.due_at is null
            and s.tenant >= v_job.tenant and s.tenant <= v_job.tenant and s.priority = v_job.priority
            and (s.position, s.id) < (v_job.position, v_job.id)
          order by s.tenant, s.priority desc, s.position, s.id limit turn_of.most)
        limit turn_of.most) before;
    weight := coalesce((select t.weight from tenant t where t.tenant = v_job.tenant), 1);
    -- Every caller may see how many tenants there are, but not which.
    perform set_config('holdfast.tenant', '*', true);
    if scope() is null then
        perform set_config('holdfast.tenant', v_scope, true);
    end if;
    select cardinality(f.names) into tenants from fair_tenants(v_job.queue, '', null, turn_of.most) f;
    perform set_config('holdfast.tenant', v_scope, true);
    return next;
end $$;

-- `dispatch.capped` is true while any tenant has a cap; without it nothing is counted. (`ruled` stays set once it is set:
-- keep_ruled.)
create or replace function guard_rules() returns trigger language plpgsql set search_path from current as $$
begin
    if hidden('*', 'tenant') or exists (select from tenant t where t.max_pending is not null) then
        raise exception 'dispatch: capped must stay true while a tenant has a cap' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_rules before update on dispatch for each row
    when (old.capped and not new.capped) execute function guard_rules();
