-- Bulk operations (DP-15): what people do to many jobs, in small batches, by any worker. The jobs of a batch and how far the
-- operation has come are one transaction, so a process that dies in between has done all of a batch or nothing; whoever works
-- on one has its row, so no two do the same. Which jobs are next is found by the caller (stores/bulk.py); that they
-- are what was asked for is looked at here once more, since a worker may do to jobs what only an administrator may ask for.

create or replace function start_operation(id uuid, verb text, wanted text, total bigint, capped boolean, reason text default null,
    max_retries integer default null, rate double precision default null, actor text default null, for_tenant text default null)
returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(start_operation.for_tenant, nullif(start_operation.actor, ''));
begin
    insert into operation (id, tenant, verb, wanted, reason, max_retries, rate, total, capped, next_at, created_by, created_at, updated_at)
    values (start_operation.id, v_scope, start_operation.verb, (start_operation.wanted::json)::text, nullif(start_operation.reason, ''),
            start_operation.max_retries, start_operation.rate, start_operation.total, start_operation.capped, v_now, actor(),
            v_now, v_now)
    on conflict (id) do nothing;
end $$;

-- What every worker asks now and then, and mostly there is none: how many seconds until a batch is due.
create or replace function next_operation(for_tenant text default null) returns double precision
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(next_operation.for_tenant);
begin
    -- `greatest` passes over nulls, so that nothing would be due at once.
    return (select case when count(*) > 0 then greatest(0, extract(epoch from min(o.next_at) - clock_now())) end from operation o
             where o.state = 'running' and (v_scope = '*' or o.tenant = v_scope) and not halted());
end $$;

-- Have the next one that is due, or a certain one, to oneself until the end of the transaction.
create or replace function hold_operation(only_id uuid default null, for_tenant text default null) returns setof operation
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(hold_operation.for_tenant);
begin
    return query
    select o.* from operation o
     where o.state = 'running' and o.next_at <= v_now and (v_scope = '*' or o.tenant = v_scope)
       and (hold_operation.only_id is null or o.id = hold_operation.only_id)
     order by o.next_at limit 1 for update skip locked;
end $$;

-- Ids sort by time, so a span of time is a span of ids: the first that there could be at a moment.
create or replace function first_id(moment timestamptz) returns uuid language sql immutable
return (lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid;

-- Whether a job is one of those that were asked for.
create or replace function is_wanted(p_job uuid, p_wanted json, p_tenant text) returns boolean
language plpgsql stable set search_path from current as $$
begin
    return exists (
        select from job j
         where j.id = p_job and (p_tenant = '*' or j.tenant = p_tenant)
           and (p_wanted ->> 'kind' is null or j.kind = p_wanted ->> 'kind')
           and (p_wanted ->> 'queue' is null or j.queue = p_wanted ->> 'queue')
           and (p_wanted ->> 'agent' is null or j.agent = p_wanted ->> 'agent')
           and (p_wanted ->> 'correlation_id' is null or j.correlation_id = p_wanted ->> 'correlation_id')
           and (p_wanted ->> 'parent_id' is null or j.parent_id = (p_wanted ->> 'parent_id')::uuid)
           and (p_wanted ->> 'since' is null or j.id >= first_id((p_wanted ->> 'since')::timestamptz))
           and (p_wanted ->> 'until' is null or j.id < first_id((p_wanted ->> 'until')::timestamptz))
           and (p_wanted ->> 'state' is null
                or exists (select from job_state s where s.id = j.id and s.state = p_wanted ->> 'state'))
           and (p_wanted ->> 'tag' is null
                or exists (select from job_tag t where t.tenant = j.tenant and t.tag = p_wanted ->> 'tag' and t.job_id = j.id))
           and (p_wanted ->> 'fingerprint' is null
                or exists (select from dead_letter l where l.job_id = j.id and l.fingerprint = p_wanted ->> 'fingerprint')));
end $$;

-- Do a batch of an operation that is held, and move its place on; with `over` there are no more.
create or replace function do_operation(operation uuid, jobs uuid[], last uuid, over boolean, for_tenant text default null)
returns integer
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(do_operation.for_tenant);
    v_op    operation;
    v_jobs  uuid[];
    v_said  jsonb;
    v_done  integer := 0;
    v_no    integer;
    v_row   record;
begin
    select o.* into v_op from operation o
     where o.id = do_operation.operation and (v_scope = '*' or o.tenant = v_scope) for update;
    if v_op.id is null or v_op.state <> 'running' or v_op.next_at > v_now or cardinality(do_operation.jobs) > 1000 then
        raise exception 'operation %: there is no batch of it to be done now', do_operation.operation using errcode = 'ZH053';
    end if;
    perform from job_state s where s.id = any (do_operation.jobs) order by s.id for update;
    -- Each job once: those that come behind its place have had their turn.
    -- What is wanted is read only where there are jobs: one that cannot be read is ended without any.
    v_jobs := case when cardinality(do_operation.jobs) = 0 then '{}' else
        array(select j.id from unnest(do_operation.jobs) as j(id)
               where (v_op.place is null or j.id < v_op.place) and is_wanted(j.id, v_op.wanted::json, v_op.tenant)) end;
    v_no := cardinality(do_operation.jobs) - cardinality(v_jobs);
    v_said := case when v_no > 0 then jsonb_build_object('not_wanted', v_no) else '{}' end;   -- not any more
    for v_row in
        select a.reason, count(*) as n from operate(v_op.verb, v_jobs, v_op.reason, v_op.created_by, v_op.tenant, v_op.max_retries, v_op.id) a
         group by 1
    loop
        if v_row.reason is null then
            v_done := v_row.n;
        else
            v_said := v_said || jsonb_build_object(v_row.reason, v_row.n);
        end if;
    end loop;
    v_no := cardinality(do_operation.jobs) - v_done;
    select v_op.refusals || coalesce(jsonb_object_agg(k.key, coalesce((v_op.refusals ->> k.key)::bigint, 0) + k.value::bigint), '{}')
      into v_said from jsonb_each_text(v_said) k;
    update operation o
       set done = o.done + v_done, refused = o.refused + v_no, refusals = v_said, place = coalesce(do_operation.last, o.place),
           next_at = v_now + make_interval(secs => coalesce(cardinality(do_operation.jobs) / o.rate, 0)), updated_at = v_now,
           state = case when do_operation.over then 'done' else 'running' end,
           finished_at = case when do_operation.over then v_now end
     where o.id = v_op.id;
    return v_done;
end $$;

create or replace function cancel_operation(id uuid, reason text default null, actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(cancel_operation.for_tenant, nullif(cancel_operation.actor, ''));
begin
    update operation o
       set state = 'cancelled', finished_at = v_now, updated_at = v_now, cancelled_by = actor(),
           cancelled_reason = nullif(cancel_operation.reason, '')
     where o.id = cancel_operation.id and o.state = 'running' and (v_scope = '*' or o.tenant = v_scope);
    return found;
end $$;

-- What was asked for never changes, nor what is over; and it goes one way.
create or replace function judge_operation() returns trigger language plpgsql as $$
begin
    if old.state <> 'running' then
        raise exception 'operation %: it is over', old.id using errcode = 'ZH002';
    end if;
    raise exception 'operation %: what was asked for never changes, and what was done is counted up', old.id using errcode = 'ZH002';
end $$;
create or replace trigger judge_update before update on operation for each row
    when (old.state <> 'running' or old.id <> new.id or old.tenant <> new.tenant or old.verb <> new.verb
          or old.wanted <> new.wanted or old.reason is distinct from new.reason or old.rate is distinct from new.rate
          or old.max_retries is distinct from new.max_retries or old.total <> new.total or old.created_by <> new.created_by
          or old.created_at <> new.created_at or new.done < old.done or new.refused < old.refused
          or (old.place is not null and (new.place is null or new.place > old.place)))
    execute function judge_operation();
-- What was over for long may be forgotten, as retention does.
create or replace trigger refuse_delete before delete on operation for each row
    when ((old.finished_at <= clock_now() - interval '90 days') is not true) execute function refuse_change();
create or replace trigger refuse_truncate before truncate on operation for each statement execute function refuse_change();
