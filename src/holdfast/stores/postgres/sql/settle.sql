-- End attempts, each with its settlement (engine/settlement.py decides; nothing is decided here). `outcomes`: succeeded,
-- retry, dead_letter, fail (final), crash, snooze, cancel, and for a handler that waits: pause (for a time or an event)
-- and ask (an approval). `details`: null, or what belongs to it:
--     {"result": …, "result_ref": …, "delay": seconds, "code": …, "message": …, "note": {…}, "steps": …, "pause": …}
-- Returns the ids whose attempt this lease no longer holds: nothing was written for those.
create or replace function settle_many(lease uuid, jobs uuid[], attempts integer[], outcomes text[],
                                       details json[] default null, for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
begin
    perform act_under(settle_many.lease, settle_many.for_tenant);
    return query select * from settle_under(settle_many.lease, settle_many.jobs, settle_many.attempts, settle_many.outcomes,
                                            settle_many.details, clock_now());
end $$;

-- The same for a caller that already acts under that lease, with the caller's settings: those of exchange, or those above.
create or replace function settle_under(lease uuid, jobs uuid[], attempts integer[], outcomes text[], details json[],
                                        v_now timestamptz) returns setof uuid language plpgsql as $$
declare
    v_jobs     uuid[];
    v_tenants  text[];
    v_outcomes text[];
    v_details  json[];
    v_as_new     uuid[];   -- retried as new jobs
begin
    -- Lease and state are compared in a form that no index matches: the index of held jobs looks small to the planner, which
    -- would scan it completely for every settlement. In ascending id order, in which every batch locks.
    if settle_under.details is null and 'succeeded' = all (settle_under.outcomes) then
        with ended as (
            update job_state s
               set state = 'succeeded', lease = null, settled_by = settle_under.lease, finished_at = v_now, due_at = null,
                   approval_id = null, error_code = null, error_message = null, note = null
              from (select o.id, o.attempt from unnest(settle_under.jobs, settle_under.attempts) as o(id, attempt)
                     order by o.id) o
             where s.id = o.id and s.lease is not distinct from settle_under.lease and s.attempt = o.attempt
               and s.state is not distinct from 'in_progress'
            returning s.id
        )
        select array_agg(id) into v_jobs from ended;
    else
        -- Of several settlements of one attempt the first counts.
        with offered as materialized (
            select distinct on (o.id, o.attempt) o.id, o.attempt, o.outcome, o.detail
              from unnest(settle_under.jobs, settle_under.attempts, settle_under.outcomes, settle_under.details)
                   with ordinality as o(id, attempt, outcome, detail, ord)
             order by o.id, o.attempt, o.ord
        ), ended as (
            update job_state s
               set state = case o.outcome when 'succeeded' then 'succeeded' when 'snooze' then 'retry_waiting'
                           when 'pause' then 'retry_waiting' when 'ask' then 'waiting_for_approval'
                           when 'cancel' then 'cancelled' else 'failed' end::state,
                   lease = null, settled_by = settle_under.lease,
                   finished_at = case when o.outcome not in ('snooze', 'pause', 'ask') then v_now end,
                   due_at = case o.outcome when 'snooze' then v_now + make_interval(secs => coalesce((o.detail ->> 'delay')::float8, 0))
                            when 'pause' then coalesce((o.detail -> 'pause' ->> 'until')::timestamptz,
                                                       v_now + make_interval(secs => (o.detail -> 'pause' ->> 'delay')::float8)) end,
                   approval_id = case when o.outcome = 'ask' then (o.detail -> 'pause' -> 'approval' ->> 'id')::uuid end,
                   error_code = case when o.outcome not in ('succeeded', 'snooze', 'pause', 'ask', 'cancel') then o.detail ->> 'code' end,
                   error_message = case when o.outcome not in ('succeeded', 'snooze', 'pause', 'ask', 'cancel') then o.detail ->> 'message' end,
                   crashes = s.crashes + case o.outcome when 'crash' then 1 else 0 end,
                   note = (o.detail -> 'note')::jsonb,
                   -- A job that no code fits yet requires code that nobody has (features/versions/postgres.sql).
                   executor = case when o.outcome = 'snooze' and o.detail -> 'note' -> 'mismatch' is not null
                                   then requirement(required(s.executor, 0), 'none', required(s.executor, 2)) else s.executor end
              from offered o
             where s.id = o.id and s.lease is not distinct from settle_under.lease and s.attempt = o.attempt
               and s.state is not distinct from 'in_progress'
            -- Whether a crash, already counted, exceeds the limit is decided from the row, as for recovery.
            returning s.id, s.tenant, case when o.outcome = 'crash' and s.crashes > s.max_crashes then 'dead_letter' else o.outcome end
                      as outcome, o.detail
        )
        select array_agg(id),
               array_agg(tenant) filter (where settle_under.details is not null),
               array_agg(outcome) filter (where settle_under.details is not null),
               array_agg(detail) filter (where settle_under.details is not null)
          into v_jobs, v_tenants, v_outcomes, v_details from ended;
    end if;

    if settle_under.details is not null then
        insert into result (job_id, tenant, value, ref)
        select o.id, o.tenant, o.detail -> 'result', o.detail ->> 'result_ref'
          from unnest(v_jobs, v_tenants, v_outcomes, v_details) as o(id, tenant, outcome, detail)
         where o.outcome = 'succeeded' and (o.detail -> 'result' is not null or o.detail -> 'result_ref' is not null)
        on conflict (job_id) do nothing;   -- a job succeeds once; `audit verify` finds rows written before

        if v_outcomes && array['retry', 'crash'] then
            v_as_new := retry_as_new(array_agg(o.id), array_agg(o.outcome), array_agg(coalesce((o.detail ->> 'delay')::float8, 0)), v_now)
                 from unnest(v_jobs, v_outcomes, v_details) as o(id, outcome, detail)
                where o.outcome in ('retry', 'crash');
        end if;

        -- `failed` is left at once, in the same transaction.
        update job_state s
           set state = case when o.outcome in ('retry', 'crash') then 'retry_waiting' else 'dead_letter' end::state,
               retries = s.retries + case o.outcome when 'retry' then 1 else 0 end,
               due_at = case when o.outcome in ('retry', 'crash')
                        then v_now + make_interval(secs => coalesce((o.detail ->> 'delay')::float8, 0)) end,
               finished_at = case when o.outcome in ('retry', 'crash') then null else v_now end,
               -- A dead letter stores its group (features/dead_letters/postgres.sql).
               note = case when o.outcome = 'dead_letter' and o.detail -> 'note' ->> 'fingerprint' is not null
                           then jsonb_strip_nulls(jsonb_build_object('fingerprint', o.detail -> 'note' ->> 'fingerprint',
                                                                     'frame', o.detail -> 'note' ->> 'frame')) end
          from unnest(v_jobs, v_outcomes, v_details) as o(id, outcome, detail)
         where s.id = o.id and o.outcome in ('retry', 'dead_letter', 'crash') and (v_as_new is null or o.id <> all (v_as_new));

        if v_outcomes && array['pause', 'ask'] then
            perform suspend(array_agg(o.id), array_agg(o.tenant), array_agg(o.detail), v_now)
               from unnest(v_jobs, v_tenants, v_outcomes, v_details) as o(id, tenant, outcome, detail)
              where o.outcome in ('pause', 'ask');
        end if;
    end if;

    if coalesce(cardinality(v_jobs), 0) < cardinality(settle_under.jobs) then
        return query select unnest(settle_under.jobs) except select unnest(v_jobs);
    end if;
end $$;
