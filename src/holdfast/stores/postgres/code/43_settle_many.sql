-- End attempts, each with its settlement (domain/settlement.py decides; nothing is decided here).
-- `outcomes`: succeeded, retry, bury, fail (final), snooze. `details`: null, or what goes with it:
--   {"result": …, "result_ref": …, "delay": seconds, "code": …, "message": …, "note": {…}}
-- Answers with the ids whose attempt was no longer this lease's: nothing was written for those.
create or replace function settle_many(lease uuid, jobs uuid[], attempts integer[], outcomes text[],
                                       details jsonb[] default null, for_tenant text default null)
returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_now();
    v_applied uuid[];
begin
    perform act_under(settle_many.lease, settle_many.for_tenant);
    with ended as (
        update job_state s
           set state = case o.outcome when 'succeeded' then 'succeeded' when 'snooze' then 'retry_waiting'
                       else 'failed' end::state,
               lease = null, settled_by = settle_many.lease,
               finished_at = case when o.outcome <> 'snooze' then v_now end,
               due_at = case when o.outcome = 'snooze'
                        then v_now + make_interval(secs => coalesce((o.detail ->> 'delay')::float8, 0)) end,
               error_code = case when o.outcome not in ('succeeded', 'snooze') then o.detail ->> 'code' end,
               error_message = case when o.outcome not in ('succeeded', 'snooze') then o.detail ->> 'message' end,
               note = o.detail -> 'note'
          from unnest(settle_many.jobs, settle_many.attempts, settle_many.outcomes, settle_many.details)
               as o(id, attempt, outcome, detail)
         where s.id = o.id and s.lease = settle_many.lease and s.attempt = o.attempt and s.state = 'in_progress'
        returning s.id
    )
    select array_agg(id) into v_applied from ended;

    if settle_many.details is not null then
        insert into result as r (job_id, tenant, value, ref)
        select s.id, s.tenant, o.detail -> 'result', o.detail ->> 'result_ref'
          from unnest(settle_many.jobs, settle_many.details) as o(id, detail)
          join job_state s on s.id = o.id
         where o.id = any (v_applied) and (o.detail ? 'result' or o.detail ? 'result_ref') and s.state = 'succeeded'
        on conflict (job_id) do update set value = excluded.value, ref = excluded.ref;

        -- `failed` passes on at once, in the same transaction.
        update job_state s
           set state = case o.outcome when 'retry' then 'retry_waiting' else 'dead_letter' end::state,
               retries = s.retries + case o.outcome when 'retry' then 1 else 0 end,
               due_at = case o.outcome when 'retry'
                        then v_now + make_interval(secs => coalesce((o.detail ->> 'delay')::float8, 0)) end,
               finished_at = case o.outcome when 'retry' then null else v_now end,
               note = null
          from unnest(settle_many.jobs, settle_many.outcomes, settle_many.details) as o(id, outcome, detail)
         where s.id = o.id and o.id = any (v_applied) and o.outcome in ('retry', 'bury');
    end if;

    if coalesce(cardinality(v_applied), 0) < cardinality(settle_many.jobs) then
        return query select unnest(settle_many.jobs) except select unnest(v_applied);
    end if;
end $$;
