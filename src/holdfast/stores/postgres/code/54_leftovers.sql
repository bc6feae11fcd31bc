-- What jobs leave behind in the artifact store (DP-16). The database cannot delete there, so it writes down what is to go, in
-- the transaction that cleans the job; whoever can deletes it, and says so. Who dies in between leaves the row, and deleting
-- twice does no harm. Nothing that a job still names is handed out: a retry that is a job of its own has the payload of the
-- first try.

create or replace function still_named(p_job uuid, p_ref text) returns boolean
language sql stable set search_path from current as $$
    with recursive tries(id) as (
        select p_job
        union
        select j.id from tries t join job j on j.retry_of = t.id where j.retry_of is not null)
    select exists (select from tries t join job j on j.id = t.id where position(p_ref in j.payload::text) > 0)
        or exists (select from result r where r.job_id = p_job and (r.ref = p_ref or position(p_ref in r.value::text) > 0))
        or exists (select from artifact a where a.job_id = p_job and a.ref = p_ref)
$$;

-- Called before these jobs are emptied. What one notes of another's is the other's to leave.
create or replace function leave_behind(p_jobs uuid[], p_now timestamptz) returns void
language sql set search_path from current as $$
    insert into leftover (tenant, ref, job_id, at, again_at)
    select j.tenant, f.ref, j.id, p_now, p_now
      from job j, lateral (
           select j.payload -> '$holdfast' ->> 'stored' as ref where j.payload::text like '{"$holdfast":%'
           union select r.ref from result r where r.job_id = j.id
           union select r.value -> '$holdfast' ->> 'stored' from result r where r.job_id = j.id and r.value::text like '{"$holdfast":%'
           union select a.ref from artifact a where a.job_id = j.id) f
     where j.id = any (p_jobs) and f.ref like 'artifact://%/' || j.id || '/%'
    on conflict do nothing
$$;

-- What is to be deleted now. It is nobody else's for ten minutes or more, the older the longer, and then somebody's again if
-- it was not forgotten.
create or replace function leftovers(want integer default 100, for_tenant text default '*') returns table (tenant text, job_id uuid, ref text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(leftovers.for_tenant);
begin
    if halted() then
        return;
    end if;
    return query
    with due as (
        select l.tenant, l.ref from leftover l where l.again_at <= v_now and (v_scope = '*' or l.tenant = v_scope)
         order by l.again_at limit leftovers.want for update skip locked),
    taken as (
        update leftover l set again_at = v_now + greatest(interval '10 minutes', (v_now - l.at) / 4) from due d where (l.tenant, l.ref) = (d.tenant, d.ref)
        returning l.tenant, l.ref, l.job_id)
    select t.tenant, t.job_id, t.ref from taken t where not still_named(t.job_id, t.ref);
end $$;

-- They are not there any more.
create or replace function forget_leftovers(refs text[], for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(forget_leftovers.for_tenant);
    v_count integer;
begin
    delete from leftover l where l.ref = any (forget_leftovers.refs) and (v_scope = '*' or l.tenant = v_scope);
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Of what was found in the artifact store, write down what belongs to no job, or to one that is cleaned. What is younger than a
-- week may be stored for a job that is just being made.
create or replace function find_leftovers(tenants text[], jobs uuid[], refs text[], for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(find_leftovers.for_tenant);
    v_count integer;
begin
    insert into leftover (tenant, ref, job_id, at, again_at)
    select f.tenant, f.ref, f.job_id, v_now, v_now
      from unnest(find_leftovers.tenants, find_leftovers.jobs, find_leftovers.refs) f(tenant, job_id, ref)
     where (v_scope = '*' or f.tenant = v_scope) and f.job_id < id_since(v_now - interval '7 days')
       and not exists (select from job_state s where s.id = f.job_id and s.state <> 'cleaned')
    on conflict do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
