-- Functions for one job, for psql and other languages. Refusals are returned, not raised, so the caller's transaction
-- continues.
--     select * from holdfast.enqueue('send_receipt', '{"to": "a@b.c"}');
--     select * from holdfast.claim('default', 'my-worker');
--     select * from holdfast.succeed(job, lease);

-- Return the reason that corresponds to an SQLSTATE with which the database refuses a new job or a lease; null for any other
-- error.
create or replace function refusal_reason(p_state text) returns text language sql immutable set search_path from current as $$
    select case p_state
        when 'ZH020' then 'agent_disabled'      when 'ZH021' then 'agent_kind_mismatch'
        when 'ZH022' then 'agent_payload_limit' when 'ZH023' then 'agent_wait_limit'
        when 'ZH033' then 'generator_only'      when 'ZH041' then 'executor_refused'
        when 'ZH050' then 'payload_forbidden'   when 'ZH051' then 'payload_over_limit'
        when 'ZH057' then 'tenant_full'         when 'ZH060' then 'paused'
        when 'ZH067' then 'tenant_unregistered' when 'ZH068' then 'kind_unregistered'
        when 'ZH069' then 'agent_unregistered'  when 'ZH072' then 'tenant_required'
        when 'ZH076' then 'key_required'        when 'ZH077' then 'executor_required'
        when 'ZH078' then 'agent_required'
        when 'ZH091' then 'payload_too_deep'
        when '23514' then 'broken_invariant'    when '23502' then 'broken_invariant'
    end;
$$;

-- Enqueue one job. Returns its id and state, or why it was refused. A `key` that is already in use returns the existing job.
-- With `strict`, refusals by a trigger or a constraint are raised, which saves a subtransaction.
create or replace function enqueue(kind text, payload json default '{}', queue text default 'default',
    key text default null, priority integer default 0, run_at timestamptz default null,
    deadline_at timestamptz default null, tags text[] default '{}', parent_id uuid default null,
    correlation_id text default null, external_ref text default null, agent text default null,
    max_attempts integer default null, backoff jsonb default null, enqueued_by text default null,
    source_system text default 'sql', for_tenant text default null, causation_id text default null,
    source_ref text default null, target_ref text default null, payload_ref text default null,
    strict boolean default false, executor text default null)
returns table (id uuid, state state, created boolean, refused boolean, reason text, detail text)
language plpgsql security definer set search_path from current as $$
declare
    v_tenant text;
    v_actor  text;
    v_now    timestamptz;
    v_job    json;
    v_reason text;
begin
    -- A plain job, which nothing can refuse, is inserted at once: without JSON, and without a subtransaction.
    if num_nonnulls($4, $6, $7, $9, $10, $11, $12, $13, $14, $18, $19, $20, $21, $23) = 0 and $8 = '{}' then
        v_tenant := coalesce($17, nullif(current_setting('holdfast.tenant', true), ''), 'default');
        if pinned_tenant() is null and v_tenant <> '*' and v_tenant <> '' and current_setting('session_replication_role') <> 'replica' then
            v_tenant := set_config('holdfast.tenant', v_tenant, true);   -- all that enter() does for one tenant
        else
            v_tenant := enter(coalesce($17, nullif(scope(), '*'), 'default'));
        end if;
        v_actor := coalesce($15, actor());
        select uuid7(), (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c) into enqueue.id, v_now   -- clock_now(), inlined
         where not (select d.ruled from dispatch d) and num_nulls($1, $3, $16) = 0
           and json_typeof($2) = 'object' and octet_length($2::text) <= 200 and $5 between -32768 and 32767
           and not odd_fact($1, $3, v_tenant, v_actor, $16, 10::smallint, 3::smallint);
        if found then
            insert into job (id, tenant, kind, queue, payload, priority, max_attempts, max_crashes, enqueued_by, source_system, created_at)
            values (enqueue.id, v_tenant, $1, $3, $2, $5, 10, 3, v_actor, $16, v_now);
            enqueue.state := 'queued';
            created := true;
            refused := false;
            return next;
            return;
        end if;
    end if;
    if json_typeof($2) <> 'object' then
        perform enter(coalesce($17, nullif(scope(), '*'), 'default'));
        return query select null::uuid, null::state, false, true, 'invalid_arguments', 'the payload must be an object of arguments';
        return;
    end if;
    v_job := json_build_array(json_build_object(
        'kind', $1, 'payload', $2, 'queue', $3, 'key', $4, 'priority', $5, 'run_at', $6, 'deadline_at', $7,
        'tags', $8, 'parent_id', $9, 'correlation_id', $10, 'external_ref', $11, 'agent', $12, 'max_attempts', $13,
        'backoff', $14, 'enqueued_by', $15, 'source_system', $16, 'causation_id', $18,
        'source_ref', $19, 'target_ref', $20, 'payload_ref', $21, 'executor', $23));
    if $22 then
        return query
        select e.id, e.state, e.created, not e.created and e.reason not in ('duplicate_key', 'duplicate_content'), e.reason, e.detail
          from enqueue_many(v_job, $17) e;
        return;
    end if;
    begin
        return query
        select e.id, e.state, e.created, not e.created and e.reason not in ('duplicate_key', 'duplicate_content'), e.reason, e.detail
          from enqueue_many(v_job, $17) e;
    exception when others then
        v_reason := refusal_reason(sqlstate);
        if v_reason is null then
            raise;
        end if;
        return query select null::uuid, null::state, false, true, v_reason, sqlerrm;
    end;
end $$;

-- Claim and start one job under its own lease: a job for any executor, or for this one. `executor` is the label that is
-- checked against the registered executors.
create or replace function claim(queue text, holder text, ttl interval default '30 s', kinds text[] default null,
                                 for_tenant text default null, executor text default 'worker')
returns table (id uuid, lease uuid, attempt integer, kind text, payload json, until timestamptz, refused boolean, reason text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_lease record;
begin
    if not executes(claim.executor) then
        return query select null::uuid, null::uuid, null::integer, null::text, null::json, null::timestamptz, true, 'executor_refused';
        return;
    end if;
    select * into v_lease from open_lease(claim.holder, claim.ttl, claim.executor, v_scope, kinds => claim.kinds,
                                          queues => array[claim.queue], slots => 1);
    return query
    select c.id, v_lease.lease, c.attempt, c.kind, c.payload::json, v_lease.until, false, null::text
      from claim_many(v_lease.lease, array[claim.queue], 1, true, claim.kinds, v_scope) c;
    if not found then
        delete from lease l where l.id = v_lease.lease;
        return query select null::uuid, null::uuid, null::integer, null::text, null::json, null::timestamptz, true, 'nothing_to_do';
    end if;
end $$;

create or replace function settle_one(p_job uuid, p_lease uuid, p_outcome text, p_detail jsonb, p_tenant text)
returns table (id uuid, state state, refused boolean, reason text) language plpgsql set search_path from current as $$
declare
    v_scope text := enter(p_tenant);
    v_row   record;
begin
    select s.state, s.attempt, s.lease into v_row from job_state s
     where s.id = p_job and (v_scope = '*' or s.tenant = v_scope);
    if not found then
        return query select p_job, null::state, true, 'not_found';
    elsif v_row.lease is distinct from p_lease or not exists (select from lease l where l.id = p_lease and l.tenant = v_scope)
       or exists (select from settle_many(p_lease, array[p_job], array[v_row.attempt], array[p_outcome], array[p_detail::json], v_scope)) then
        return query select p_job, s.state, true, 'stale_lease' from job_state s where s.id = p_job;
    else
        update lease l set ended_at = clock_now(), ended_why = 'settled', swept_at = clock_now()
         where l.id = p_lease and l.slots = 1 and l.version is null and l.ended_at is null;   -- opened by claim()
        return query select p_job, s.state, false, null::text from job_state s where s.id = p_job;
    end if;
end $$;

-- Complete an attempt successfully and store its result. Refused with `stale_lease` if the lease no longer holds the job.
create or replace function succeed(job uuid, lease uuid, result jsonb default null, result_ref text default null,
                                   for_tenant text default null)
returns table (id uuid, state state, refused boolean, reason text)
language sql security definer set search_path from current as $$
    select * from settle_one($1, $2, 'succeeded',
        jsonb_strip_nulls(jsonb_build_object('result_ref', $4))
        || case when $3 is null then '{}' else jsonb_build_object('result', $3) end, $5);
$$;

-- Record that an attempt failed. The job is retried by its own policy while it has retries left; otherwise, or if the failure
-- is permanent, it becomes a dead letter.
create or replace function fail(job uuid, lease uuid, code text, message text, permanent boolean default false,
                                for_tenant text default null) returns table (id uuid, state state, refused boolean, reason text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope   text := enter(for_tenant);   -- before any read: without a tenant no row is visible
    v_backoff jsonb;
    v_retry   integer;
    v_dead    boolean;
    v_delay   interval;
begin
    select j.backoff, s.retries + 1, fail.permanent or s.retries + 1 >= s.max_attempts into v_backoff, v_retry, v_dead
      from job_state s join job j on j.id = s.id where s.id = fail.job;
    begin
        v_delay := least(greatest(backoff_delay(v_backoff, v_retry), '0'), '30 days');   -- the bounds of a policy
    exception when data_exception then
        v_delay := backoff_delay(null, v_retry);   -- a hand-written backoff is malformed; the attempt must end all the same
    end;
    return query
    select * from settle_one(fail.job, fail.lease, case when v_dead then 'dead_letter' else 'retry' end,
        jsonb_build_object('code', fail.code, 'message', fail.message, 'delay', extract(epoch from v_delay)), v_scope);
end $$;

-- Renew a lease for `ttl` from now. Refused with `stale_lease` if it has ended.
create or replace function renew(lease uuid, ttl interval default '30 s', for_tenant text default null)
returns table (lease uuid, refused boolean, reason text) language sql security definer set search_path from current as $$
    select $1, not kept, case when not kept then 'stale_lease' end from renew_lease($1, $2, $3) kept;
$$;

-- Save progress of a running attempt under a name. Refused with `stale_lease` if the lease no longer holds the job.
create or replace function progress(job uuid, lease uuid, value jsonb, name text default 'progress', for_tenant text default null)
returns table (id uuid, refused boolean, reason text) language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_saved boolean := false;
begin
    if exists (select from lease l where l.id = progress.lease and l.tenant = v_scope) then
        select save_checkpoint(progress.job, progress.lease, s.attempt, progress.name, progress.value::json, v_scope) into v_saved
          from job_state s where s.id = progress.job;
    end if;
    v_saved := coalesce(v_saved, false);
    return query select progress.job, not v_saved, case when not v_saved then 'stale_lease' end;
end $$;

-- Return a claimed job that has not started to its queue. It costs no attempt.
create or replace function release(job uuid, lease uuid, for_tenant text default null)
returns table (id uuid, refused boolean, reason text) language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_done  boolean := false;
begin
    if exists (select from lease l where l.id = release.lease and l.tenant = v_scope) then
        v_done := exists (select from release_many(release.lease, array[release.job], v_scope));
    end if;
    return query select release.job, not v_done, case when not v_done then 'stale_lease' end;
end $$;

-- Cancel a job that has not ended; the worker of a running one is notified. Returns its state, or why it was refused.
create or replace function cancel(job uuid, reason text default null, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language sql security definer set search_path from current as $$ select * from cancel_many(array[$1], $2, $3, $4) $$;

-- Return a dead letter to its queue with a full number of attempts. With `at` or `delay` it does not start before that time.
create or replace function redrive(job uuid, reason text default null, actor text default null,
                                   max_attempts integer default null, for_tenant text default null,
                                   at timestamptz default null, delay interval default null)
returns table (id uuid, state state, refused boolean, refusal text)
language sql security definer set search_path from current as $$ select * from redrive_many(array[$1], $2, $3, $4, $5, $6, $7) $$;

-- Give a waiting job another start time, another maximum number of attempts, or both. Without `at` and `delay` it starts as
-- soon as possible.
create or replace function reschedule(job uuid, at timestamptz default null, delay interval default null,
                                      max_attempts integer default null, reason text default null,
                                      actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language sql security definer set search_path from current as $$ select * from reschedule_many(array[$1], $2, $3, $4, $5, $6, $7) $$;

-- Discard a dead letter for good. Returns its state, or why it was refused.
create or replace function discard(job uuid, reason text, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language sql security definer set search_path from current as $$ select * from discard_many(array[$1], $2, $3, $4) $$;

-- Return one job, or no row. For callers that do not set a tenant for their transaction themselves.
create or replace function get_job(job uuid, for_tenant text default null) returns setof jobs
language plpgsql set search_path from current as $$
declare v_scope text := enter(for_tenant);
begin return query select j.* from jobs j where j.id = get_job.job and (v_scope = '*' or j.tenant = v_scope); end $$;

-- List jobs, newest first, filtered by the given arguments. `with_tag` and `with_tags` are all required, of `with_any_tag` one;
-- 'customer:*' is the label with any value. For the next page pass the last id as `before`.
create or replace function list_jobs(in_state state default null, of_kind text default null, before uuid default null,
                                     want integer default 50, for_tenant text default null, in_queue text default null,
                                     with_tag text default null, created_from timestamptz default null,
                                     created_until timestamptz default null, with_correlation text default null,
                                     for_executor text default null, with_tags text[] default null,
                                     with_any_tag text[] default null, of_domain text default null,
                                     with_external_ref text default null, with_key text default null,
                                     with_limit_key text default null, of_agent text default null, of_parent uuid default null,
                                     of_workflow uuid default null, of_part text default null, from_template text default null,
                                     from_template_version integer default null, from_schedule text default null,
                                     scheduled_for timestamptz default null, of_group text default null,
                                     of_worker text default null) returns setof jobs
language plpgsql set search_path from current set plan_cache_mode = force_custom_plan as $$
declare
    v_scope text := enter(list_jobs.for_tenant);
    v_tags  text[] := array_remove(with_tags || with_tag || (' key:' || with_limit_key), null);   -- as tag_entries has them
begin
    -- As out_of_time and refuse_time do, which the callers' roles may not execute.
    if least(created_from, created_until, list_jobs.scheduled_for) < '0001-01-01 00:00:00+00'
       or greatest(created_from, created_until, list_jobs.scheduled_for) >= '10000-01-01 00:00:00+00' then
        raise exception 'created_from, created_until or scheduled_for is out of range'
            using errcode = 'ZH090', hint = 'Use a time in the years 1 to 9999, in UTC.';
    end if;
    return query select j.* from jobs j
     where (v_scope = '*' or j.tenant = v_scope) and (in_state is null or j.state = in_state)
       and (of_kind is null or j.kind = of_kind) and (list_jobs.before is null or j.id < list_jobs.before)
       and (in_queue is null or j.queue = in_queue) and (with_correlation is null or j.correlation_id = with_correlation)
       and (for_executor is null or j.executor = for_executor) and (of_domain is null or j.domain = of_domain)
       and (with_external_ref is null or j.external_ref = with_external_ref) and (of_agent is null or j.agent = of_agent)
       and (of_parent is null or j.parent_id = of_parent) and (of_workflow is null or j.workflow_id = of_workflow)
       and (of_part is null or j.part = of_part) and (from_template is null or j.template = from_template)
       and (from_template_version is null or j.template_version = from_template_version)
       and (from_schedule is null or j.schedule = from_schedule)
       and (list_jobs.scheduled_for is null or j.scheduled_for = list_jobs.scheduled_for)
       and (of_worker is null or j.worker = of_worker or j.worker like 'worker ' || of_worker || ' (%')
       and (created_from is null or j.created_at >= created_from) and (created_until is null or j.created_at < created_until)
       and (with_key is null or j.id in (select i.job_id from idempotency i
                                          where i.key = with_key and (v_scope = '*' or i.tenant = v_scope)))
       and (of_group is null or j.id in (select d.job_id from dead_letter d
                                          where d.fingerprint = of_group and (v_scope = '*' or d.tenant = v_scope)))
       and (coalesce(cardinality(v_tags), 0) = 0 or j.id in (
               select t.job_id from job_tag t where t.tag = any (v_tags) and (v_scope = '*' or t.tenant = v_scope)
                group by t.job_id having count(*) = cardinality(array(select distinct unnest(v_tags)))))
       and (with_any_tag is null or j.id in (select t.job_id from job_tag t
                                              where t.tag = any (with_any_tag) and (v_scope = '*' or t.tenant = v_scope)))
     order by j.id desc limit list_jobs.want;
end $$;

-- Return the events of a job in order.
create or replace function history(job uuid, for_tenant text default null)
returns table (seq bigint, at timestamptz, type text, from_state state, to_state state, attempt integer, actor text, meta jsonb)
language plpgsql set search_path from current as $$
declare v_scope text := enter(for_tenant);
begin
    return query select e.seq, e.at, e.type, e.from_state, e.to_state, e.attempt, e.actor, e.meta from event e
     where e.job_id = history.job and (v_scope = '*' or e.tenant = v_scope) order by e.seq;
end $$;

-- Report backlog, running jobs, dead letters and other numbers as JSON, for other languages. Each number is counted up to ten
-- thousand, so that the cost is bounded. The verdict with its reasons is part of the CLI and the Python API.
create or replace function health(for_tenant text default null) returns jsonb
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_now   timestamptz := clock_now();
    v_cap   constant integer := 10000;
begin
    return jsonb_build_object(
        'backlog', (select count(*) from (select from job_state s
                     where s.state = 'queued' and s.due_at is null and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'in_progress', (select count(*) from (select from job_state s
                     where s.state in ('leased', 'in_progress') and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'dead_letter_open', (select count(*) from (select from job_state s where s.state = 'dead_letter'
                     and s.state not in ('leased', 'in_progress') and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'oldest_queued_age_s', (select extract(epoch from v_now - min(
                         -- A job that has run before has waited since it came back, not since it was created.
                         case when s.attempt = 0 then greatest(j.created_at, j.run_at)
                              else (select e.at from event e where e.job_id = s.id order by e.seq desc limit 1) end))::float8
                     from (select s.id, s.attempt from job_state s
                            where s.state = 'queued' and s.due_at is null and (v_scope = '*' or s.tenant = v_scope)
                            limit v_cap) s join job j on j.id = s.id),
        'lease_active', (select count(*) from lease l where l.ended_at is null and l.until > v_now
                     and l.name <> 'reservation'   -- its holder is not a worker
                     and (v_scope = '*' or l.tenant in (v_scope, '*'))),
        'approvals_open', (select count(*) from (select from approval g
                     where g.state = 'open' and (v_scope = '*' or g.tenant = v_scope) limit v_cap) c),
        'oldest_approval_age_s', (select extract(epoch from v_now - min(g.opened_at))::float8
                     from approval g where g.state = 'open' and (v_scope = '*' or g.tenant = v_scope)),
        'paused', coalesce((select jsonb_agg(pause_message(w) order by w.scope, w.name, w.tenant) from pause w
                     where (w.until is null or w.until > v_now) and (v_scope = '*' or w.tenant in (v_scope, '*'))), '[]'));
end $$;

-- Return the jobs of a chain of retries in order, given any one of them.
create or replace function chain(job uuid, for_tenant text default null) returns setof jobs
language plpgsql set search_path from current as $$
declare
    v_scope text := enter(chain.for_tenant);
    v_ids   uuid[] := array[chain.job];
    v_next  uuid := chain.job;
begin
    while array_length(v_ids, 1) < 500 loop
        select j.retry_of into v_next from job j where j.id = v_ids[1] and (v_scope = '*' or j.tenant = v_scope);
        exit when v_next is null;
        v_ids := v_next || v_ids;
    end loop;
    while array_length(v_ids, 1) < 500 loop
        select j.id into v_next from job j
         where j.retry_of = v_ids[array_upper(v_ids, 1)] and (v_scope = '*' or j.tenant = v_scope);
        exit when v_next is null;
        v_ids := v_ids || v_next;
    end loop;
    return query select j.* from unnest(v_ids) with ordinality as o(id, n) join jobs j on j.id = o.id
     where v_scope = '*' or j.tenant = v_scope order by o.n;
end $$;
