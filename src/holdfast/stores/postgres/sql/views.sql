-- Every job: its facts, its origin and its state. Restricted payloads and lease tokens are not shown.
create or replace view jobs as
select j.id, j.tenant, j.kind, j.queue, s.state, s.attempt, s.retries, s.crashes, s.max_attempts, s.max_crashes,
       s.priority, s.position,
       case when s.due_at < 'infinity' then s.due_at end as due_at, s.started_at, s.finished_at, s.error_code,
       case when s.error_message <> withheld() and hides(j.tenant, j.kind) then '[restricted]' else s.error_message end as error_message,
       j.created_at, j.run_at, j.deadline_at, shown_payload(j.id) as payload, j.backoff, j.idempotency_key, j.content_key, j.tags,
       j.agent, j.correlation_id, j.causation_id, j.parent_id, j.workflow_id, j.external_ref,
       j.enqueued_by, j.source_system, j.uses, j.retry_as, j.retry_of, j.depth,
       -- From the ledger, so that no write pays for them.
       (select e.at from event e where e.job_id = j.id order by e.seq desc limit 1) as updated_at,
       (select e.at from event e where e.job_id = j.id and e.from_state = 'in_progress' and e.type in ('fail', 'lease_expired', 'crash')
         order by e.seq desc limit 1) as last_error_at,
       r.source_ref, r.target_ref, r.payload_ref, j.executor,
       (select e.at from event e where e.job_id = j.id and e.to_state = 'queued' and coalesce(e.from_state, '') <> 'queued'
         order by e.seq desc limit 1) as queued_at,
       (select e.actor from event e where e.job_id = j.id and e.to_state in ('leased', 'in_progress')
           and coalesce(e.from_state, '') <> e.to_state order by e.seq desc limit 1) as worker,
       k.domain, m.template, m.template_version, m.schedule_id, m.schedule, m.due_at as scheduled_for, n.part
  from job j join job_state s on s.id = j.id left join reference r on r.job_id = j.id
  left join registered_kind k on k.name = j.kind left join made_from m on m.job_id = j.id left join node n on n.job_id = j.id;

-- An attempt is two rows of the ledger: the one that started it and the first one after. A skipped time of a schedule has a
-- job that never ran: its record has the number 0. `log` is the reference of a program's output, or 'database'.
create or replace view attempts as
select b.job_id, b.tenant, b.kind, b.attempt, b.actor as worker, b.at as started_at, e.at as ended_at,
       case e.type when 'succeed' then 'succeeded' when 'fail' then 'failed' when 'lease_expired' then 'crashed' when 'crash' then 'crashed'
                   when 'ask' then 'suspended' when 'snooze' then 'suspended' when 'cancel' then 'cancelled' end as outcome,
       e.meta ->> 'error_code' as error_code,
       case when rule.not_shown then '[restricted]' else e.meta ->> 'error_message' end as error_message,
       (e.meta ->> 'exit_code')::integer as exit_code,
       case when kept.log is not null and hides(b.tenant, b.kind) then '[restricted]' else kept.log end as log,
       case when rule.not_shown and e.meta ? 'traceback' then '[restricted]' else e.meta ->> 'traceback' end as traceback,
       b.seq as started_seq, attempt_payload(b.job_id, b.attempt) as payload,
       b.meta ->> 'version' as version
  from event b
  left join lateral (
       select n.* from event n where n.job_id = b.job_id and n.seq > b.seq and n.from_state = 'in_progress'
        order by n.seq limit 1) e on true
  -- Messages of a kind that became restricted later are hidden like its payloads.
  left join lateral (select e.meta ->> 'error_message' <> withheld() and hides(b.tenant, b.kind) as not_shown) rule on true
  left join lateral (select coalesce(
       e.meta ->> 'log',
       (select l.ref from attempt_log l where l.job_id = b.job_id and l.attempt = b.attempt and l.ref is not null order by l.n desc limit 1),
       (select 'database' as log from attempt_log l where l.job_id = b.job_id and l.attempt = b.attempt limit 1)) as log) kept on true
 where b.to_state = 'in_progress'
union all
select c.job_id, c.tenant, c.kind, 0, c.actor, c.at, c.at, 'skipped', null, null, null, null, null, c.seq, shown_payload(c.job_id), null
  from event c
 where c.type = 'cancel' and c.attempt = 0 and c.meta ->> 'reason' = 'skipped' and c.meta ? 'schedule';

-- For autoscalers and dashboards: jobs that may start now, running jobs, and jobs that need an operator. The columns are part
-- of the interface. They are counted, so the cost grows with the number of jobs; health() is bounded.

-- Jobs that may start now, by tenant, queue and kind.
create or replace view backlog as
select s.tenant, s.queue, s.kind, count(*) as waiting
  from job_state s where s.state = 'queued' and s.due_at is null group by s.tenant, s.queue, s.kind;

-- Claimed and running jobs by tenant, queue and kind, and when the first of them started.
create or replace view in_progress as
select s.tenant, s.queue, s.kind, count(*) as running, min(s.started_at) as oldest_started_at
  from job_state s where s.state in ('leased', 'in_progress') group by s.tenant, s.queue, s.kind;

-- Open dead letters by tenant, queue, kind and error.
create or replace view dead_letter_open as
select s.tenant, s.queue, s.kind, s.error_code, count(*) as dead, min(s.finished_at) as first_at, max(s.finished_at) as last_at
  from job_state s where s.state = 'dead_letter' and s.state not in ('leased', 'in_progress')
 group by s.tenant, s.queue, s.kind, s.error_code;

-- The current actor and time, as operations see them.
create or replace view present as select actor() as actor, clock_now() as now;

do $$
begin
    -- Before version 15 a view reads as its owner; forced row-level security applies to the owner too.
    if current_setting('server_version_num')::integer >= 150000 then
        alter view jobs set (security_invoker = true);
        alter view present set (security_invoker = true);
        alter view attempts set (security_invoker = true);
        alter view backlog set (security_invoker = true);
        alter view in_progress set (security_invoker = true);
        alter view dead_letter_open set (security_invoker = true);
    end if;
end $$;
