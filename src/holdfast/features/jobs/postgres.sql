-- Copy the finished steps of a job before a position to a new job that is forked from it. Approvals are not
-- copied: a decision is valid for the job it was given for. `parts`: [{"n", "value"}, …], the values that are sealed for one job
-- or stored for it, as the new job needs them; without one such a step is not copied. Returns their number.
create or replace function fork_steps(job uuid, new_id uuid, before integer, step text, parts json default '[]', reason text default null,
                                      actor text default null, for_tenant text default null) returns integer
language plpgsql security definer set search_path from current as $$
declare
    v_scope  text := enter(fork_steps.for_tenant, nullif(fork_steps.actor, ''));
    v_tenant text;
    v_count  integer;
begin
    select j.tenant into v_tenant from job_state s, job j join job o on o.id = fork_steps.job and o.tenant = j.tenant and o.kind = j.kind
     where j.id = fork_steps.new_id and (v_scope = '*' or j.tenant = v_scope) and 'fork:' || o.id = any (j.tags)
       and s.id = j.id and s.attempt = 0 and not exists (select from step t where t.job_id = j.id)
       for update of s;
    if not found then
        raise exception 'job % is not a new fork of job %', fork_steps.new_id, fork_steps.job using errcode = 'ZH002';
    end if;
    insert into step as t (job_id, n, tenant, name, kind, value, error, tries, attempt, started_at, wake_at, ended_at, shape, wanted)
    select fork_steps.new_id, o.n, o.tenant, o.name, o.kind, coalesce(p.value, o.value), o.error, o.tries, 0, o.started_at, o.wake_at,
           o.ended_at, o.shape, o.wanted
      from step o left join json_to_recordset(fork_steps.parts) as p(n integer, value json) on p.n = o.n
     where o.job_id = fork_steps.job and o.n < fork_steps.before and o.ended_at is not null and o.kind <> 'approval'
       and (p.n is not null or o.value is null or o.value::text not like '{"$holdfast":%');
    get diagnostics v_count = row_count;
    perform note_action(v_tenant, 'fork', 'job', fork_steps.job::text, jsonb_strip_nulls(jsonb_build_object(
        'new_id', fork_steps.new_id, 'from_step', fork_steps.step, 'n', fork_steps.before, 'steps', v_count,
        'reason', nullif(fork_steps.reason, ''))));
    return v_count;
end $$;
