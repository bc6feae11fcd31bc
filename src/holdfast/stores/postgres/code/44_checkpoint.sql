-- Save progress under a name (CX-8). The hot row is read, locked against a change of hands, and not rewritten.
create or replace function save_checkpoint(job uuid, lease uuid, attempt integer, name text, value json,
                                           for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_now();
    v_tenant text;
begin
    perform act_under(save_checkpoint.lease, save_checkpoint.for_tenant);
    select s.tenant into v_tenant from job_state s
     where s.id = save_checkpoint.job and s.lease is not distinct from save_checkpoint.lease
       and s.attempt = save_checkpoint.attempt and s.state is not distinct from 'in_progress'
       for share;
    if not found then
        return false;
    end if;
    insert into checkpoint as c (job_id, tenant, name, value, attempt, saved_at)
    values (save_checkpoint.job, v_tenant, save_checkpoint.name, save_checkpoint.value, save_checkpoint.attempt, v_now)
    on conflict (job_id, name) do update
       set value = excluded.value, attempt = excluded.attempt, saved_at = excluded.saved_at;
    return true;
end $$;

-- Note a file an attempt has made (SC-5). Late ones are welcome, while the job is still this lease's or has just ended by it.
create or replace function add_artifact(job uuid, lease uuid, attempt integer, name text, ref text, meta jsonb default null,
                                        for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now    timestamptz := clock_now();
    v_tenant text;
begin
    perform act_under(add_artifact.lease, add_artifact.for_tenant);
    select s.tenant into v_tenant from job_state s
     where s.id = add_artifact.job and s.attempt = add_artifact.attempt
       and add_artifact.lease in (s.lease, s.settled_by)
       for share;
    if not found then
        return false;
    end if;
    insert into artifact as a (job_id, tenant, attempt, name, ref, meta, at)
    values (add_artifact.job, v_tenant, add_artifact.attempt, add_artifact.name, add_artifact.ref, add_artifact.meta, v_now);
    return true;
end $$;
