-- Archives: finished jobs as files in the artifact store, before retention removes them (docs/adr/0040). The database cannot
-- write files: a process reads the rows, stores the file, and records it. If it dies before, nothing is removed, and the next
-- process writes the same file again.

-- Of these jobs, the finished ones whose policy wants an archive, that are due under it and not archived.
create or replace function to_archive(p_jobs uuid[], p_now timestamptz) returns setof job_state
language sql stable set search_path from current as $$
    select s.* from job_state s, lateral retention_for(s.tenant, s.kind, ended_as(s.state, s.note)) r
     where s.id = any (p_jobs) and s.state in ('succeeded', 'failed', 'cancelled', 'dead_letter', 'cleaned')
       and r.archive and s.finished_at <= p_now - span(least(r.clean_after, r.purge_after)) and not is_archived(s.id)
$$;

-- The next finished jobs after `after`, in the order of their ids, whose policy wants an archive and that are due under it.
create or replace function unarchived(after uuid default '00000000-0000-0000-0000-000000000000', look integer default 2000,
                                      for_tenant text default '*')
returns table (jobs uuid[], tenants text[], ends timestamptz[], reached uuid, more boolean)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(unarchived.for_tenant);
    v_age   double precision := (select min(least(r.clean_after, r.purge_after)) from retention r
                                  where r.archive and (v_scope = '*' or r.tenant in (v_scope, '*')));
    v_ids   uuid[] := '{}';
begin
    if v_age is not null then
        v_ids := array(select j.id from job j
                        where j.id > unarchived.after and j.id <= id_since(v_now - span(v_age) + interval '1 ms')
                          and (v_scope = '*' or j.tenant = v_scope)
                        order by j.id limit unarchived.look);
    end if;
    select coalesce(array_agg(s.id order by s.id), '{}'), coalesce(array_agg(s.tenant order by s.id), '{}'),
           coalesce(array_agg(s.finished_at order by s.id), '{}') into jobs, tenants, ends
      from to_archive(v_ids, v_now) s;
    more := cardinality(v_ids) >= unarchived.look;
    reached := coalesce(v_ids[cardinality(v_ids)], unarchived.after);
    return next;
end $$;

-- The rows of jobs, by table, as JSON text; as they are stored. Only of jobs that have to be archived now: restricted payloads
-- are among them.
create or replace function archive_rows(jobs uuid[], for_tenant text default '*') returns table (id uuid, document text)
language plpgsql security definer set search_path from current set timezone = 'UTC' set jit = off as $$
declare v_scope text := enter(archive_rows.for_tenant);
begin
    return query
    select j.id, json_build_object(
               'job', to_json(j), 'job_state', to_json(s),
               'event', coalesce((select json_agg(to_json(e) order by e.seq) from event e where e.job_id = j.id), '[]'),
               'result', (select to_json(r) from result r where r.job_id = j.id),
               'step', coalesce((select json_agg(to_json(t) order by t.n) from step t where t.job_id = j.id), '[]'),
               'checkpoint', coalesce((select json_agg(to_json(c) order by c.name) from checkpoint c where c.job_id = j.id), '[]'),
               'artifact', coalesce((select json_agg(to_json(a) order by a.attempt, a.name) from artifact a where a.job_id = j.id), '[]'),
               'attempt_log', coalesce((select json_agg(to_json(l) order by l.attempt, l.n) from attempt_log l where l.job_id = j.id), '[]'),
               'approval', coalesce((select json_agg(to_json(g) order by g.id) from approval g where g.job_id = j.id), '[]'),
               'vote', coalesce((select json_agg(to_json(v) order by v.approval_id, v.n) from vote v, approval g
                                  where g.job_id = j.id and v.approval_id = g.id), '[]'),
               'replaced_payload', coalesce((select json_agg(to_json(p) order by p.attempt) from replaced_payload p where p.job_id = j.id), '[]'),
               'reference', (select to_json(f) from reference f where f.job_id = j.id),
               'made_from', (select to_json(m) from made_from m where m.job_id = j.id),
               'node', (select to_json(n) from node n where n.job_id = j.id),
               'redriven_as', coalesce((select json_agg(to_json(x) order by x.job_id) from redriven_as x
                                         where x.job_id = j.id or x.new_id = j.id), '[]'))::text
      from to_archive(archive_rows.jobs, clock_now()) s join job j on j.id = s.id
     where v_scope = '*' or j.tenant = v_scope order by j.id;
end $$;

-- Record a stored archive. Jobs that have changed since they were read stay unarchived. Recording it twice changes nothing.
-- Without a job of this tenant there is no row. If another file was recorded under this id, its jobs are not marked. Records of
-- files to delete that were made before are removed: the files now belong to an archive.
create or replace function record_archive(archive uuid, ref text, bytes bigint, jobs uuid[], ends timestamptz[],
                                          actor text default null, for_tenant text default null) returns setof archive
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(record_archive.for_tenant, nullif(record_archive.actor, ''));
begin
    if not exists (select from job j where j.id = any (record_archive.jobs) and j.tenant = v_scope) then
        return;
    end if;
    insert into archive (id, tenant, ref, bytes, jobs, first_job, last_job, seal, seal_digest, created_by, created_at)
    select record_archive.archive, v_scope, record_archive.ref, record_archive.bytes, cardinality(record_archive.jobs),
           record_archive.jobs[1], record_archive.jobs[cardinality(record_archive.jobs)], l.number, l.digest, actor(), v_now
      from (select 1) one left join (select s.number, s.digest from seal s order by s.number desc limit 1) l on true
    on conflict do nothing;
    delete from orphaned_file l where l.tenant = v_scope and l.job_id = record_archive.archive;
    insert into archived as d (job_id, tenant, archive_id, finished_at)
    select u.id, v_scope, record_archive.archive, u.finished_at
      from unnest(record_archive.jobs, record_archive.ends) u(id, finished_at)
      join job_state s on s.id = u.id and s.tenant = v_scope and s.finished_at = u.finished_at
     where exists (select from archive a where a.id = record_archive.archive and a.ref = record_archive.ref)
     order by u.id
    on conflict (job_id) do update set archive_id = excluded.archive_id, finished_at = excluded.finished_at
     where d.finished_at is distinct from excluded.finished_at;
    return query select a.* from archive a where a.id = record_archive.archive and a.tenant = v_scope;
end $$;
