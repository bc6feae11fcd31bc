-- Give each new job its state and the first event of its ledger.
--
-- Usually it is one plain job. Then the cost is not the row but each statement, aggregate, function call and expression, which
-- the server prepares every time. So the first query reads only the first row, without an aggregate, and checks whether
-- anything else has to be done; if not, the two inserts follow at once (docs/adr/0025). Rules of features are hooks
-- (`*_on_insert`), called with the ids of the new jobs, whose rows are already in `job`. Their order decides which refusal is
-- reported.

-- Whether a job has facts that need more than its state row and its first event. One call that counts the nulls takes fewer
-- steps than ten comparisons.
create or replace function special_facts(tags text[], uses text[], retry_as text, depth smallint, agent text, workflow_id uuid,
                                         retry_of uuid, run_at timestamptz, deadline_at timestamptz, backoff jsonb,
                                         executor text) returns boolean language sql immutable
return tags <> '{}' or num_nonnulls(uses, retry_as, depth, agent, workflow_id, retry_of, run_at, deadline_at, backoff, executor) > 0;

-- The rows of `job_tag` for a job: its tags, `name:*` for each label `name:value`, and its limit key after a space, with which
-- no tag begins. Tags of traces are never searched for (docs/adr/0024).
create or replace function tag_entries(tags text[], uses text[]) returns setof text language sql immutable as $$
    select e.tag from unnest(tags) t, lateral (values (t), (case when strpos(t, ':') > 0 then split_part(t, ':', 1) || ':*' end)) e(tag)
     where e.tag is not null and t not like 'trace:%' and t not like 'tracestate:%'
    union
    select ' ' || u from unnest(uses) u where u like 'key:%'
$$;

create or replace function on_job_insert() returns trigger language plpgsql set search_path from current as $$
declare
    v_now timestamptz;
    v_many    boolean;   -- more than one row
    v_long    boolean;   -- a payload that may be deep
    v_special boolean;
    v_ruled   boolean;   -- features have rules for new jobs
    v_tagged  boolean;
    v_agented boolean;
    v_flowing boolean;
    v_retried boolean;
    v_broken  boolean;
    v_later   boolean;
    v_count   bigint;
    v_queue   text;
    v_key     text;
begin
    -- SELECT INTO takes the first row.
    select exists (select from added offset 1), octet_length(a.payload::text) > 200,
           odd_fact(a.kind, a.queue, a.tenant, a.enqueued_by, a.source_system, a.max_attempts, a.max_crashes)
           or special_facts(a.tags, a.uses, a.retry_as, a.depth, a.agent, a.workflow_id, a.retry_of, a.run_at, a.deadline_at,
                            a.backoff, a.executor),
           (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c),   -- clock_now(), inlined
           (select case when not d.ruled then d.signal_key end from dispatch d), a.queue
      into v_many, v_long, v_special, v_now, v_key, v_queue from added a;
    if (v_many or v_long or v_special or v_key is null) is false then   -- one plain job
        insert into job_state (id, tenant, kind, queue, state, priority, max_attempts, max_crashes)
        select id, tenant, kind, queue, 'queued', priority, max_attempts, max_crashes from added;
        insert into event (xid, job_id, tenant, kind, type, to_state, attempt, at, actor)
        select txid_current() + ledger_base(), id, tenant, kind, 'enqueue', 'queued', 0, v_now, enqueued_by from added;
        -- notify_listeners(v_queue) in one expression, which takes fewer steps than a statement.
        if current_setting('holdfast.notify', true) is distinct from 'off' and is_awaited(v_queue)
           and pg_notify(current_schema(), left(encode(sha256(convert_to(v_key || v_queue, 'UTF8')), 'hex'), 32)) is null then
        end if;
        return new;   -- null in a statement trigger, without an expression to evaluate
    end if;
    if v_many is null then   -- no row at all
        return null;
    end if;
    v_ruled := v_key is null;
    if v_many then
        select bool_or(odd_fact(a.kind, a.queue, a.tenant, a.enqueued_by, a.source_system, a.max_attempts, a.max_crashes)
                       or special_facts(a.tags, a.uses, a.retry_as, a.depth, a.agent, a.workflow_id, a.retry_of, a.run_at,
                                        a.deadline_at, a.backoff, a.executor)),
               bool_or(octet_length(a.payload::text) > 200)
          into v_special, v_long from added a;
    end if;
    if v_long then   -- shorter ones cannot be deep
        perform refuse_deep(a.id) from added a where octet_length(a.payload::text) > 200 and too_deep(a.payload::text);
    end if;
    if v_ruled then
        perform registration_on_insert(array(select a.id from added a));
        perform registry_on_insert(array(select a.id from added a), v_now);
        perform pauses_on_insert(array(select a.id from added a), v_now);
    end if;
    if v_special then
        select bool_or(a.tags <> '{}' or a.uses is not null), bool_or(a.agent is not null and a.retry_of is null), bool_or(a.workflow_id is not null),
               bool_or(a.retry_of is not null), bool_or(a.run_at is not null),
               bool_or(broken_fact(a.kind, a.queue, a.tenant, a.enqueued_by, a.source_system, a.max_attempts, a.max_crashes,
                                   a.uses, a.retry_as, a.depth, a.tags, a.run_at, a.deadline_at, a.backoff, a.executor) is not null)
          into v_tagged, v_agented, v_flowing, v_retried, v_later, v_broken from added a;
        if v_broken then
            perform refuse_row('job', b.rule) from added a, broken_fact(a.kind, a.queue, a.tenant, a.enqueued_by,
                    a.source_system, a.max_attempts, a.max_crashes, a.uses, a.retry_as, a.depth, a.tags, a.run_at, a.deadline_at,
                    a.backoff, a.executor) as b(rule) where b.rule is not null;
        end if;
    end if;
    if v_ruled then
        perform tenants_on_insert(array(select a.id from added a), v_now);
    end if;
    if v_flowing is not true then
        insert into job_state (id, tenant, kind, queue, state, priority,
                               max_attempts, max_crashes, due_at, deadline_at, agent, executor)
        select id, tenant, kind, queue, 'queued', priority,
               max_attempts, max_crashes, case when run_at > v_now then run_at end, deadline_at, agent, executor
          from added;
    else
        perform workflows_on_insert(array(select a.id from added a), v_now);
    end if;
    insert into event (xid, job_id, tenant, kind, type, from_state, to_state, attempt, at, actor)
    select txid_current() + ledger_base(), id, tenant, kind, 'enqueue', null, 'queued', 0, v_now, enqueued_by
      from added;
    get diagnostics v_count = row_count;
    if v_special then
        if v_tagged then
            insert into job_tag (tenant, tag, job_id)
            select a.tenant, t.tag, a.id from added a, tag_entries(a.tags, a.uses) as t(tag);
        end if;
        if v_retried then
            perform take_over(a.id, a.tenant, a.kind, a.retry_of) from added a where a.retry_of is not null;
        end if;
        if v_agented then
            perform agents_on_insert(array(select a.id from added a), v_now);
        end if;
    end if;
    if v_ruled then
        perform payloads_on_insert(array(select a.id from added a));
    end if;
    if v_special then
        perform announce_upkeep();   -- it may have a time
    end if;
    if v_count > 1 or v_later then
        perform notify_listeners(q.queue) from (select distinct a.queue from added a
                                      where a.run_at is null or a.run_at <= v_now) q
         where is_awaited(q.queue);
    elsif v_count = 1 and is_awaited(v_queue) then
        perform notify_listeners(v_queue);
    end if;
    return null;
end $$;

create or replace trigger on_insert after insert on job
    referencing new table as added
    for each statement execute function on_job_insert();

-- As a column default instead of in the insert: a sequence in the select list keeps the planner from inlining the subquery.
alter table job_state alter column position set default nextval('position_seq') * 100;
