-- Claim up to `want` jobs under a lease, in queue order: priority, position, age. With `begin` they start at
-- once (one step, one event); without it they wait as `leased`, to be started or handed back.
-- MATERIALIZED: a plain IN (select … limit) may be run again for each row and take more than the limit.
create or replace function claim_many(lease uuid, queues text[], want integer, begin boolean default true,
                                      kinds text[] default null, for_tenant text default null)
returns table (id uuid, tenant text, kind text, queue text, payload text, attempt integer, retries smallint,
               crashes smallint, max_retries smallint, max_crashes smallint, backoff jsonb, priority smallint,
               deadline_at timestamptz, created_at timestamptz, correlation_id text, parent_id uuid,
               workflow_id uuid, agent text, tags text[])
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_now();
    v_left   integer := claim_many.want;
    v_got    integer;
    v_queue  text;
    v_holder text;
    v_scope  text := enter(claim_many.for_tenant);
    v_state  state := case when claim_many.begin then 'in_progress' else 'leased' end;
begin
    -- The share lock keeps a reaper from ending this lease while jobs are being put under it.
    select l.holder into v_holder from lease l
     where l.id = claim_many.lease and l.ended_at is null and l.until > v_now and l.tenant = v_scope
       for share;
    if not found then
        raise exception 'lease % is not live', claim_many.lease
            using errcode = 'ZH003', hint = 'Open a lease first: select * from open_lease(…).';
    end if;
    perform set_config('holdfast.actor', v_holder, true);
    foreach v_queue in array claim_many.queues loop
        exit when v_left <= 0;
        return query
        with picked as materialized (
            select s.id from job_state s
             where s.queue = v_queue and s.state = 'queued' and s.due_at is null
               and (s.deadline_at is null or s.deadline_at > v_now)
               and (claim_many.kinds is null or s.kind = any (claim_many.kinds))
               and (v_scope = '*' or s.tenant = v_scope)
             order by s.priority desc, s.position, s.id
             limit v_left
             for update skip locked
        ), taken as (
            update job_state s
               set state = v_state, lease = claim_many.lease, settled_by = null, note = null,
                   attempt = s.attempt + case when claim_many.begin then 1 else 0 end,
                   started_at = case when claim_many.begin then v_now else s.started_at end
              from picked p
             where s.id = p.id
            returning s.id, s.attempt, s.retries, s.crashes, s.priority, s.position, s.max_retries
        )
        select j.id, j.tenant, j.kind, j.queue, j.payload::text, t.attempt, t.retries, t.crashes,
               t.max_retries, j.max_crashes, j.backoff, t.priority, j.deadline_at, j.created_at,
               j.correlation_id, j.parent_id, j.workflow_id, j.agent, j.tags
          from taken t join job j on j.id = t.id
         order by t.priority desc, t.position, t.id;
        get diagnostics v_got = row_count;
        v_left := v_left - v_got;
    end loop;
end $$;

-- Start what was claimed without beginning. Rows that come back have started; the rest is no longer ours.
create or replace function start_many(lease uuid, jobs uuid[], for_tenant text default null)
returns table (id uuid, attempt integer)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_now();
begin
    perform act_under(start_many.lease, start_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (start_many.jobs) and s.lease is not distinct from start_many.lease and s.state = 'leased'
         order by s.id for update
    )
    update job_state s
       set state = 'in_progress', attempt = s.attempt + 1, started_at = v_now, note = null
      from ours where s.id = ours.id
    returning s.id, s.attempt;
end $$;

-- Hand back what was claimed and not begun, at no cost to it.
create or replace function release_many(lease uuid, jobs uuid[], for_tenant text default null)
returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform act_under(release_many.lease, release_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (release_many.jobs) and s.lease is not distinct from release_many.lease and s.state = 'leased'
         order by s.id for update
    )
    update job_state s set state = 'queued', lease = null, note = null
      from ours where s.id = ours.id
    returning s.id;
end $$;
