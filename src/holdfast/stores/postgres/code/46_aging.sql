-- Queues in which waiting counts: a job's stored priority is raised by and by (SC-2: the order is what is stored, and
-- nothing else). A queue has this if somebody says so.

create or replace function set_aging(queue text, aging double precision, step integer default 1, most integer default 100,
                                     actor text default null, for_tenant text default null)
returns setof queue_setting
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(set_aging.for_tenant, set_aging.actor);
begin
    if set_aging.aging is null then
        delete from queue_setting q where q.tenant = v_scope and q.queue = set_aging.queue;
        return;
    end if;
    return query
    insert into queue_setting as q (tenant, queue, aging, aging_step, aging_most, set_by, updated_at)
    values (v_scope, set_aging.queue, set_aging.aging, set_aging.step, set_aging.most, actor(), clock_now())
    on conflict (tenant, queue) do update
       set aging = excluded.aging, aging_step = excluded.aging_step, aging_most = excluded.aging_most,
           set_by = excluded.set_by, updated_at = excluded.updated_at
    returning q.*;
end $$;

-- Raise what has waited long enough, a batch at a time; answers how many. A job stands by its priority as it was enqueued
-- plus a step for each span that it has been waiting for its turn, up to the queue's most; its position stays, so that among its new
-- equals it stands by its age. What a person has moved is theirs. Only the jobs longest in line of each priority are looked at.
create or replace function age_queues(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_now();
    v_scope   text := enter(age_queues.for_tenant, 'aging');
    v_setting queue_setting;
    v_level   smallint;
    v_jobs    uuid[];
    v_count   integer := 0;
    v_more    integer;
begin
    if halted() then
        return 0;
    end if;
    for v_setting in select q.* from queue_setting q order by q.tenant, q.queue loop
        v_level := v_setting.aging_most;
        loop
            select s.priority into v_level from job_state s
             where s.queue = v_setting.queue and s.state = 'queued' and s.due_at is null and s.priority < v_level
             order by s.priority desc limit 1;
            exit when not found or v_count >= age_queues.want;
            select array_agg(w.id) into v_jobs from (
                select s.id from job_state s
                 where s.queue = v_setting.queue and s.state = 'queued' and s.due_at is null and s.priority = v_level
                   and (v_setting.tenant = '*' or s.tenant = v_setting.tenant)
                 order by s.priority desc, s.position, s.id limit age_queues.want - v_count for update skip locked) w;
            with old as materialized (
                select w.id, least(v_setting.aging_most, j.priority + v_setting.aging_step
                           * floor(extract(epoch from v_now - greatest(j.created_at, j.process_after)) / v_setting.aging)) as priority
                  from unnest(v_jobs) w(id) join job j on j.id = w.id
                 where not exists (select from event e where e.job_id = w.id and e.verb = 'move' and e.actor <> 'aging')
            )
            update job_state s
               set priority = o.priority,
                   note = coalesce(s.note, '{}') || jsonb_build_object('moved', jsonb_build_object(
                       'to', 'aging', 'priority', o.priority,
                       'times', 1 + (select count(*) from event e where e.job_id = s.id and e.verb = 'move')))
              from old o where s.id = o.id and o.priority > s.priority;
            get diagnostics v_more = row_count;
            v_count := v_count + v_more;
        end loop;
        if v_count > 0 then
            perform rouse(' ' || v_setting.queue);
        end if;
    end loop;
    return v_count;
end $$;
