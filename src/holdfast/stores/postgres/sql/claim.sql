-- The parts of an exchange as separate functions: for other languages, and for workers that claim ahead of time.

-- Claim up to `want` jobs without settling anything, and return them.
create or replace function claim_many(lease uuid, queues text[], want integer, begin boolean default true,
                                      kinds text[] default null, for_tenant text default null)
returns table (id uuid, tenant text, kind text, queue text, payload text, attempt integer, retries smallint,
               crashes smallint, max_attempts smallint, max_crashes smallint, backoff jsonb, priority smallint,
               "position" bigint, deadline_at timestamptz, created_at timestamptz, correlation_id text, parent_id uuid,
               workflow_id uuid, agent text, tags text[]) language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(claim_many.for_tenant);
begin
    if not exists (select from lease l where l.id = claim_many.lease and l.tenant = v_scope
                      and l.ended_at is null and l.until > clock_now()) then
        raise exception 'lease % is not live', claim_many.lease
            using errcode = 'ZH003', hint = 'Open a lease first: select * from open_lease(…).';
    end if;
    return query
    select t.id, t.tenant, t.kind, t.queue, t.payload, t.attempt, t.retries, t.crashes, t.max_attempts, t.max_crashes,
           t.backoff, t.priority, t.position, t.deadline_at, t.created_at, t.correlation_id, t.parent_id, t.workflow_id,
           t.agent, t.tags
      from exchange(claim_many.lease, null, null, null, null, claim_many.queues, claim_many.want, claim_many.begin,
                    claim_many.kinds, null, null, v_scope) t
     where t.id is not null;
end $$;

-- Start jobs that were claimed without `begin`. Returns those that have started; this lease no longer holds the others, or
-- their deadline has passed.
create or replace function start_many(lease uuid, jobs uuid[], for_tenant text default null)
returns table (id uuid, attempt integer) language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_now timestamptz := clock_now();
begin
    perform act_under(start_many.lease, start_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (start_many.jobs) and s.lease is not distinct from start_many.lease
           and s.state is not distinct from 'leased' and (s.deadline_at is null or s.deadline_at > v_now)
         order by s.id for update
    )
    update job_state s
       set state = 'in_progress', attempt = s.attempt + 1, started_at = v_now, note = null,
           executor = case when l.pins is null or s.kind <> all (l.pins) then s.executor
                           else requirement(l.app_version, required(s.executor, 1), required(s.executor, 2)) end
      from ours, lease l where s.id = ours.id and l.id = start_many.lease
    returning s.id, s.attempt;
end $$;

-- Return claimed jobs that have not started to their queues. It costs them no attempt.
create or replace function release_many(lease uuid, jobs uuid[], for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
    perform act_under(release_many.lease, release_many.for_tenant);
    return query
    with ours as materialized (
        select s.id from job_state s
         where s.id = any (release_many.jobs) and s.lease is not distinct from release_many.lease
           and s.state is not distinct from 'leased'
         order by s.id for update
    )
    update job_state s set state = 'queued', lease = null, note = null
      from ours where s.id = ours.id
    returning s.id;
    perform notify_listeners(q.queue) from (select distinct s.queue from job_state s where s.id = any (release_many.jobs)) q;
end $$;
