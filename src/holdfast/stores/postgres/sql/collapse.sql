-- Calls with one key that become one job (engine/collapse.py). The row in `content` is locked by lock_keys: calls with the same
-- key wait for each other here.

-- How a call joins earlier ones. With `existing` there is no new job, and the existing one is started at `due`, if that is
-- given. Otherwise the new job supersedes the waiting one `old`, and is due at `due`.
create or replace function collapse(p_tenant text, p_id uuid, p_content text, p_how jsonb, p_now timestamptz,
                                    out existing uuid, out reason text, out old uuid, out due timestamptz)
language plpgsql set search_path from current as $$
declare
    v_wait  interval := span((p_how ->> 'wait')::float8);
    v_since timestamptz;
begin
    select c.job_id, c.since into old, v_since from content c where c.tenant = p_tenant and c.key = p_content;
    if p_how ->> 'mode' = 'throttle' then
        if v_since + v_wait > p_now then
            existing := old;
            reason := 'throttled';
        else
            update content c set job_id = p_id, since = p_now where c.tenant = p_tenant and c.key = p_content;
        end if;
        old := null;
        return;
    end if;
    if old = '00000000-0000-0000-0000-000000000000' or exists (select from job_state s where s.id = old and not supersedes(s)) then
        old := null;   -- what runs, or has ended, is left alone
    end if;
    if old is null then
        v_since := p_now;
    end if;
    if p_how ->> 'mode' = 'debounce' then
        due := least(p_now + v_wait, coalesce(v_since, p_now) + span((p_how ->> 'longest')::float8));
    end if;
    if old is not null and (p_how ->> 'first')::boolean then
        existing := old;
        reason := 'debounced';
        old := null;
        return;
    end if;
    update content c set job_id = p_id, since = coalesce(v_since, p_now) where c.tenant = p_tenant and c.key = p_content;
end $$;

-- Whether a newer call may supersede a job: it waits to start, or to be retried. One with recorded steps is half done.
create or replace function supersedes(s job_state) returns boolean language plpgsql stable set search_path from current as $$
begin
    return s.state in ('queued', 'retry_waiting') and not exists (select from step t where t.job_id = s.id);
end $$;

-- Cancel superseded jobs. One that a worker has taken meanwhile runs on.
create or replace function supersede(p_old uuid[], p_new uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare v_done uuid[];
begin
    select array_agg(h.id) into v_done from (
        select s.id from job_state s where s.id = any (p_old) and supersedes(s) order by s.id for update) h;
    update job_state s
       set state = 'cancelled', lease = null, due_at = null, finished_at = p_now,
           note = jsonb_build_object('reason', 'superseded', 'superseded_by', o.new)
      from unnest(p_old, p_new) as o(old, new) where s.id = any (v_done) and s.id = o.old;
end $$;

-- Apply a batch: `p_calls` has {"n", "id", "key", "how"} of each call that joins others. Returns the ordinals without a new job,
-- with their reasons, and the jobs with their due times.
create or replace function collapse_calls(p_calls jsonb, p_tenant text, p_now timestamptz, inout jobs json, out skipped jsonb)
language plpgsql set search_path from current as $$
declare
    v_call record;
    v_is   record;
    v_at   jsonb := '{}';   -- id -> ordinal, of the new jobs
    v_due  jsonb := '{}';   -- ordinal -> time
    v_old  uuid[] := '{}';
    v_new  uuid[] := '{}';
    v_actor text := coalesce(current_setting('holdfast.actor', true), '');
begin
    skipped := '{}';
    for v_call in select c ->> 'n' as n, (c ->> 'id')::uuid as id, c ->> 'key' as key, c -> 'how' as how from jsonb_array_elements(p_calls) c loop
        select * into v_is from collapse(p_tenant, v_call.id, v_call.key, v_call.how, p_now);
        if v_is.existing is not null then
            skipped := skipped || jsonb_build_object(v_call.n, jsonb_build_object('reason', v_is.reason));
            if v_is.due is not null and not v_at ? v_is.existing::text then
                perform reschedule_many(array[v_is.existing], v_is.due, reason => v_is.reason, for_tenant => p_tenant)
                   from job_state s where s.id = v_is.existing and s.state = 'queued' and s.due_at < v_is.due;
            end if;
            continue;
        end if;
        if v_at ? v_is.old::text then   -- an earlier one of this batch, which is not stored
            skipped := skipped || jsonb_build_object(v_at ->> v_is.old::text, '{"reason": "superseded"}'::jsonb);
        elsif v_is.old is not null then
            v_old := v_old || v_is.old;
            v_new := v_new || v_call.id;
        end if;
        v_at := v_at || jsonb_build_object(v_call.id, v_call.n);
        if v_is.due is not null then
            v_due := v_due || jsonb_build_object(v_call.n, v_is.due);
        end if;
    end loop;
    -- The newest job of each key: also where one that superseded another was superseded itself.
    select coalesce(jsonb_object_agg(k.n, jsonb_build_object('id', c.job_id, 'reason', skipped -> k.n ->> 'reason')), '{}') into skipped
      from (select e ->> 'n' as n, e ->> 'key' as key from jsonb_array_elements(p_calls) e) k
      join content c on c.tenant = p_tenant and c.key = k.key where skipped ? k.n;
    if v_old <> '{}' then
        -- Cancelled by the caller that enqueued the newer job.
        perform set_config('holdfast.actor', coalesce((select j ->> 'enqueued_by' from json_array_elements(jobs) j
                                                        where j ->> 'collapse' is not null and j ->> 'enqueued_by' is not null limit 1), v_actor), true);
        perform supersede(v_old, (select array_agg(c.job_id order by o.i) from unnest(v_new) with ordinality as o(id, i)
                                    cross join lateral (select c.job_id from jsonb_array_elements(p_calls) e
                                                          join content c on c.tenant = p_tenant and c.key = e ->> 'key'
                                                         where e ->> 'id' = o.id::text) c), p_now);
        perform set_config('holdfast.actor', v_actor, true);
    end if;
    update idempotency i set job_id = c.job_id, payload_hash = e.hash
      from (select distinct on (j ->> 'kind', j ->> 'key') j ->> 'kind' as kind, j ->> 'key' as key, j ->> 'content_key' as content,
                   coalesce(j ->> 'payload_hash', md5(coalesce(j -> 'payload', '{}')::jsonb::text)) as hash
              from json_array_elements(jobs) with ordinality as a(j, n) where j ->> 'collapse' is not null
             order by 1, 2, n desc) e
      join content c on c.tenant = p_tenant and c.key = e.content
     where i.tenant = p_tenant and i.kind = e.kind and i.key = e.key;
    if v_due <> '{}' then   -- concatenated as text: a payload must stay exactly as it was sent
        select json_agg(case when v_due ? n::text then (
                   select json_object_agg(k, v) from (
                       select key as k, value as v from json_each(j) where key not in ('run_at', 'delay')
                       union all select 'run_at', to_json(v_due ->> n::text)) parts) else j end order by n) into jobs
          from json_array_elements(jobs) with ordinality as a(j, n);
    end if;
end $$;
