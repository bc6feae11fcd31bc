-- Find the jobs that make a claim or a maintenance task fail, and skip them for ten minutes. Returns their ids.
--
-- A statement that moves a batch of jobs fails as a whole when one row breaks a rule (a number out of range, a state that does
-- not match its other columns). Such a row can only have been written around the functions. This tries each candidate alone,
-- in a subtransaction that is always rolled back, and records those that fail. It is called only after a failure: the usual
-- path costs one read of an empty table. After ten minutes the row is tried again.
create or replace function quarantine(lease uuid, queues text[], kinds text[] default null, want integer default 1000,
                                     for_tenant text default '*') returns setof uuid
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(quarantine.for_tenant, 'recovery');
    v_bad   uuid[] := array(select q.job_id from quarantine q where q.until > clock_now());
    v_live  boolean := exists (select from lease l where l.id = quarantine.lease and l.tenant = v_scope
                                  and l.ended_at is null and l.until > clock_now());
    v_job   record;
    v_why   text;
begin
    for v_job in
        select c.id, c.tenant, c.how from (
            (select s.id, s.tenant, 'take' as how from job_state s
              where v_live and s.queue = any (quarantine.queues) and s.state = 'queued' and s.due_at is null
                and (quarantine.kinds is null or s.kind = any (quarantine.kinds))
                and s.id <> all (v_bad) and (v_scope = '*' or s.tenant = v_scope)
              order by s.queue, s.priority desc, s.position, s.id limit quarantine.want)
            union all
            (select s.id, s.tenant, 'promote' from job_state s
              where s.due_at <= v_now and s.due_at is not null and s.state in ('queued', 'retry_waiting')
                and s.id <> all (v_bad) and (v_scope = '*' or s.tenant = v_scope)
              order by s.due_at limit quarantine.want)
            union all
            (select s.id, s.tenant, 'expire' from job_state s
              where s.deadline_at <= v_now and s.deadline_at is not null
                and s.state in ('queued', 'leased', 'retry_waiting', 'waiting_for_approval')
                and s.id <> all (v_bad) and (v_scope = '*' or s.tenant = v_scope)
              order by s.deadline_at limit quarantine.want)
            union all
            (select s.id, s.tenant, 'free' from job_state s
              where s.lease in (select l.id from lease l where l.ended_at is not null and l.swept_at is null)
                and s.state in ('leased', 'in_progress')
                and s.id <> all (v_bad) and (v_scope = '*' or s.tenant = v_scope)
              order by s.id limit quarantine.want)) c
    loop
        begin
            if v_job.how = 'take' then
                update job_state s set state = 'in_progress', lease = quarantine.lease, settled_by = null, note = null,
                       held_by = null, attempt = s.attempt + 1, started_at = v_now where s.id = v_job.id;
            elsif v_job.how = 'promote' then
                update job_state s set state = 'queued', due_at = null, note = null where s.id = v_job.id;
                perform notify_listeners(s.queue) from job_state s where s.id = v_job.id;
            elsif v_job.how = 'expire' then
                update job_state s set state = 'failed', lease = null, due_at = null, approval_id = null, finished_at = v_now, note = null,
                       error_code = 'deadline_passed', error_message = '' where s.id = v_job.id;
            else
                perform free_jobs(array[v_job.id], v_now);
            end if;
            raise exception 'sound' using errcode = 'ZH099';
        exception
            when sqlstate 'ZH099' then null;
            -- Only errors about the row itself: not a lock, a lost lease or a full disk.
            when data_exception or check_violation or not_null_violation or sqlstate 'ZH001' or sqlstate 'ZH002' then
                get stacked diagnostics v_why = message_text;
                insert into quarantine as q (job_id, tenant, why, at, until)
                values (v_job.id, v_job.tenant, left(v_why, 1000), v_now, v_now + interval '10 minutes')
                on conflict (job_id) do update set why = excluded.why, at = excluded.at, until = excluded.until;
                return next v_job.id;
        end;
    end loop;
end $$;
