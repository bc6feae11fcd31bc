-- A job's facts have been written: give each its state and the first row of its ledger.
--
-- Mostly it is one plain job, and then it is not the row that costs but each statement, each aggregate in it, each call
-- of a function: the server makes them ready anew every time. So the first look asks only whether there is anything to
-- look at (docs/adr/0033).
create or replace function on_job_insert() returns trigger language plpgsql set search_path from current as $$
declare
    v_now timestamptz;
    v_xid bigint := pg_current_xact_id()::text::bigint;
    v_special boolean;
    v_tagged boolean;
    v_agented boolean;
    v_flowing boolean;
    v_retried boolean;
    v_ruled   boolean;
    v_broken boolean;
    v_later  boolean;
    v_long   boolean;
    v_count  bigint;
    v_queue  text;
    v_told   text;
    v_key    text;
    v_agent  agent;
    v_row    record;
    v_bad    record;
    v_switch switch;
    v_rule   payload_rule;
begin
    select (select d.ruled from dispatch d), (select d.signal_key from dispatch d),
           (select coalesce(c.stopped, clock_timestamp() + c.shift) from clock c),   -- as clock_now() says: here without a call
           bool_or(odd_fact(a.kind, a.queue, a.tenant, a.enqueued_by, a.source_system, a.max_retries, a.max_crashes)
                   or a.uses is not null or a.retry_as is not null or a.depth is not null
                   or a.tags <> '{}' or a.agent is not null or a.workflow_id is not null
                   or a.retry_of is not null or a.process_after is not null or a.deadline_at is not null or a.backoff is not null),
           min(a.queue), bool_or(length(a.payload::text) > 200)
      into v_ruled, v_key, v_now, v_special, v_queue, v_long from added a;
    if v_long then   -- shorter ones cannot be deep
        perform refuse_deep(a.id) from added a where length(a.payload::text) > 200 and too_deep(a.payload::text);
    end if;
    if v_ruled then
        if (select d.registered from dispatch d) then
            perform refuse_unregistered(a.tenant, a.kind) from added a
              where not exists (select from tenant t where t.tenant = a.tenant)
                and not is_owed(a.id, a.retry_of) limit 1;
        end if;
        -- What the store makes itself, as part of an attempt that ends, is let in: the next try, and who tells people.
        select a.kind, w into v_bad from added a join switch w
            on w.refuse_enqueue and (w.until is null or w.until > v_now) and w.tenant in (a.tenant, '*')
           and case w.scope when 'all' then true when 'queue' then w.name = a.queue when 'kind' then w.name = a.kind
                            else w.name = a.agent end
         where not is_owed(a.id, a.retry_of) limit 1;
        if found then
            v_switch := v_bad.w;
            perform refuse_paused(v_bad.kind, v_switch);
        end if;
    end if;
    if v_special then
        select bool_or(a.tags <> '{}'), bool_or(a.agent is not null and a.retry_of is null), bool_or(a.workflow_id is not null),
               bool_or(a.retry_of is not null), bool_or(a.process_after is not null),
               bool_or(broken_fact(a.kind, a.queue, a.tenant, a.enqueued_by, a.source_system, a.max_retries, a.max_crashes,
                                   a.uses, a.retry_as, a.depth, a.tags, a.process_after, a.deadline_at, a.backoff) is not null)
          into v_tagged, v_agented, v_flowing, v_retried, v_later, v_broken from added a;
        if v_broken then
            perform refuse_row('job', b.rule) from added a, broken_fact(a.kind, a.queue, a.tenant, a.enqueued_by,
                    a.source_system, a.max_retries, a.max_crashes, a.uses, a.retry_as, a.depth, a.tags, a.process_after, a.deadline_at,
                    a.backoff) as b(rule) where b.rule is not null;
        end if;
    end if;
    if v_ruled then
        -- How many of a tenant's jobs may wait (features/tenants/postgres.sql).
        perform hold_to_cap(t.tenant, t.jobs, t.owed, t.kind, v_now) from (
            select a.tenant, count(*)::integer as jobs, min(a.kind) as kind,
                   count(*) filter (where is_owed(a.id, a.retry_of))::integer as owed
              from added a where a.tenant in (select k.tenant from tenant k where k.max_pending is not null)
             group by a.tenant order by a.tenant) t;
    end if;
    if v_flowing is not true then
        insert into job_state (id, tenant, kind, queue, state, priority,
                               max_retries, max_crashes, due_at, deadline_at, agent)
        select id, tenant, kind, queue, 'queued', priority,
               max_retries, max_crashes, case when process_after > v_now then process_after end, deadline_at, agent
          from added;
    else
        -- Whatever carries the id of a workflow joins it. Those that were planned have their node already, and wait for
        -- their parents from the beginning.
        perform from workflow w where w.id in (select a.workflow_id from added a) order by w.id for update;
        select w.id into v_bad from added a join workflow w on w.id = a.workflow_id and w.tenant = a.tenant
         where w.finished_at is not null limit 1;
        if found then
            raise exception 'workflow % is over', v_bad.id
                using errcode = 'ZH030', hint = 'Start another one, or resume this one first.';
        end if;
        -- Others wait for this very job, so it is retried in place (enqueue_many sees to it; a hand-written insert has to).
        select a.id into v_bad from added a where a.workflow_id is not null and a.retry_as is not null limit 1;
        if found then
            raise exception 'job %: a job of a workflow is retried in place', v_bad.id using errcode = 'ZH034';
        end if;
        insert into node (job_id, tenant, workflow_id, standing, fatal)
        select a.id, a.tenant, w.id, case when w.stopped then 'skipped' else 'open' end, w.on_failure = 'stop'
          from added a join workflow w on w.id = a.workflow_id and w.tenant = a.tenant
        on conflict (job_id) do nothing;
        insert into job_state (id, tenant, kind, queue, state, priority, position,
                               max_retries, max_crashes, due_at, deadline_at, agent, workflow_id, note)
        select a.id, a.tenant, a.kind, a.queue, 'queued', a.priority, nextval('position_seq') * 100,
               a.max_retries, a.max_crashes,
               case when n.unmet > 0 or n.standing = 'skipped' then 'infinity'::timestamptz
                    when a.process_after > v_now then a.process_after end,
               a.deadline_at, a.agent, n.workflow_id,
               case when n.unmet > 0 or n.standing = 'skipped' then '{"held": "parents"}'::jsonb end
          from (select *, row_number() over () as ord from added) a   -- in the order in which they were sent
          left join node n on n.job_id = a.id and n.tenant = a.tenant and n.workflow_id = a.workflow_id
         order by a.ord;
        update workflow w
           set total = w.total + c.total, open = w.open + c.open, skipped = w.skipped + c.total - c.open,
               finished_at = case when w.open + c.open = 0 then v_now end
          from (select n.workflow_id, count(*)::integer as total, (count(*) filter (where n.standing = 'open'))::integer as open
                  from added a join node n on n.job_id = a.id group by 1) c
         where w.id = c.workflow_id;
    end if;
    insert into event (xid, job_id, tenant, kind, verb, from_state, to_state, attempt, at, actor)
    select v_xid, id, tenant, kind, 'enqueue', null, 'queued', 0, v_now, enqueued_by
      from added;
    get diagnostics v_count = row_count;
    if v_special then
        if v_tagged then
            insert into job_tag (tenant, tag, job_id)
            select distinct a.tenant, t.tag, a.id from added a, unnest(a.tags) as t(tag)
             where t.tag not like 'trace:%' and t.tag not like 'tracestate:%';   -- nobody looks for them (docs/adr/0030)
        end if;
        if v_retried then
            perform take_over(a.id, a.tenant, a.kind, a.retry_of) from added a where a.retry_of is not null;
        end if;
        -- A retry was accepted with its first try: if its agent has been disabled since, it waits, as it would have.
        if v_agented then
            for v_row in select distinct a.tenant, a.agent from added a where a.agent is not null and a.retry_of is null order by 1, 2 loop
                v_agent := agent_now(v_row.tenant, v_row.agent);
                continue when v_agent.id is null;
                select a.kind, octet_length(a.payload::text) as bytes, r.reason into v_bad
                  from added a, lateral (select coalesce(
                           agent_refusal(v_agent, a.kind, octet_length(a.payload::text)),
                           -- The functions see to it; a hand-written insert has to.
                           case when v_agent.max_wait is not null
                                     and (a.deadline_at <= agent_deadline(v_agent, null, a.process_after, v_now)) is not true
                                then 'agent_wait_limit' end) as reason) r
                 where a.tenant = v_row.tenant and a.agent = v_row.agent and a.retry_of is null and r.reason is not null limit 1;
                if found then
                    perform refuse_for_agent(v_agent, v_bad.reason, v_bad.kind, v_bad.bytes);
                end if;
            end loop;
        end if;
    end if;
    if v_ruled then
        -- What may be in a payload (features/payloads/postgres.sql). A retry was accepted with its first try.
        for v_row in select distinct a.tenant, a.kind from added a where a.retry_of is null order by 1, 2 loop
            v_rule := rule_for(v_row.tenant, v_row.kind);
            continue when v_rule.kind is null;
            perform judge_payload(v_rule, a.kind, a.payload) from added a
              where a.tenant = v_row.tenant and a.kind = v_row.kind and a.retry_of is null;
        end loop;
    end if;
    if v_count > 1 or v_later then
        perform rouse(q.queue) from (select distinct a.queue from added a
                                      where a.process_after is null or a.process_after <= v_now) q;
    elsif v_count = 1 and current_setting('holdfast.notify', true) is distinct from 'off' then
        v_told := pg_notify(current_schema(), signal_of(v_key, v_queue))::text;   -- as rouse(v_queue) does, and no statement of its own
    end if;
    return null;
end $$;

create or replace trigger on_insert after insert on job
    referencing new table as added
    for each statement execute function on_job_insert();

-- By the column and not in the insert: a sequence within what is selected keeps the planner from reading it as one.
alter table job_state alter column position set default nextval('position_seq') * 100;
