-- What there is around a job, for whoever asks why it does not run (HF-2): what its last step was about, who holds it, who
-- could take it, and how many are before it. Tokens are not shown, and of other tenants nothing but how many: the ranges
-- of the claim index that are read are those of the whole queue, and bounded.
create or replace function circumstances(job uuid, most integer default 1000, for_tenant text default null)
returns table (now timestamptz, note jsonb, holder text, label text, held_until timestamptz, held boolean, ahead integer,
               workers jsonb, renewed_at timestamptz)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_scope text := enter(circumstances.for_tenant);
    v_job   record;
begin
    now := clock_now();
    select s.tenant, s.queue, s.priority, s.position, s.id, s.state, s.due_at, s.lease, s.note into v_job
      from job_state s where s.id = circumstances.job and (v_scope = '*' or s.tenant = v_scope);
    if not found then
        return;
    end if;
    note := v_job.note;
    perform set_config('holdfast.tenant', '*', true);
    if scope() is null then
        perform set_config('holdfast.tenant', v_scope, true);
    end if;
    if v_job.lease is not null then
        select l.holder, l.name, l.until, l.ended_at is null and l.until > now, l.renewed_at
          into holder, label, held_until, held, renewed_at
          from lease l where l.id = v_job.lease;
    end if;
    if v_job.state = 'queued' and v_job.due_at is null then
        select count(*) into ahead from (
            (select 1 from job_state s
              where s.queue = v_job.queue and s.state = 'queued' and s.due_at is null and s.priority > v_job.priority
              order by s.priority desc, s.position, s.id limit circumstances.most)
            union all
            (select 1 from job_state s
              where s.queue = v_job.queue and s.state = 'queued' and s.due_at is null and s.priority = v_job.priority
                and (s.position, s.id) < (v_job.position, v_job.id)
              order by s.priority desc, s.position, s.id limit circumstances.most)
            limit circumstances.most) before;
    end if;
    select jsonb_agg(jsonb_build_object('label', w.name, 'holder', w.holder, 'tenant', w.tenant, 'kinds', w.kinds,
                                        'queues', w.queues, 'slots', w.slots, 'busy',
                     (select count(*) from job_state s where s.lease = w.id and s.state in ('leased', 'in_progress')))) into workers
      from (select l.id, l.name, l.holder, l.tenant, l.kinds, l.queues, l.slots from lease l
             where l.ended_at is null and l.until > now and (v_scope = '*' or l.tenant in (v_scope, '*'))
               and (l.kinds is not null or l.queues is not null)
             order by l.until desc limit 200) w;
    perform set_config('holdfast.tenant', v_scope, true);
    return next;
end $$;

-- Live workers and their running jobs. Lease tokens are not returned; of other tenants' jobs only the number is.
create or replace function worker_standings(most integer default 200, for_tenant text default null)
returns table (label text, holder text, tenant text, kinds text[], queues text[], slots integer, busy bigint,
               opened_at timestamptz, renewed_at timestamptz, until timestamptz, version text, stop_request text,
               stop_requested_at timestamptz, stop_requested_by text, job_ids text[])
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    v_scope text := enter(worker_standings.for_tenant);
    v_now   timestamptz := clock_now();
begin
    perform set_config('holdfast.tenant', '*', true);
    if scope() is null then
        perform set_config('holdfast.tenant', v_scope, true);
    end if;
    return query
        select w.name, w.holder, w.tenant, w.kinds, w.queues, w.slots,
               (select count(*) from job_state s where s.lease = w.id and s.state in ('leased', 'in_progress')),
               w.opened_at, w.renewed_at, w.until, w.version, w.stop_request, w.stop_requested_at, w.stop_requested_by,
               array(select s.id::text from job_state s where s.lease = w.id and s.state in ('leased', 'in_progress')
                        and (v_scope = '*' or s.tenant = v_scope) order by s.id limit 20)
          from (select l.* from lease l where l.ended_at is null and l.until > v_now and l.name <> 'reservation'   -- no worker
                   and (v_scope = '*' or l.tenant in (v_scope, '*'))
                 order by l.renewed_at desc limit greatest(1, least(worker_standings.most, 1000))) w
         order by w.renewed_at desc;
    perform set_config('holdfast.tenant', v_scope, true);
end $$;

-- The writes of the newest attempt that are not worth an event each: renewals of its lease and reports of progress. A lease
-- renews for all its jobs; a worker that was declared lost has none any more.
create or replace function liveness(job uuid, for_tenant text default null)
returns table (job_id uuid, attempt integer, worker text, renewals integer, renewed_at timestamptz, reports integer, reported_at timestamptz)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(liveness.for_tenant);
begin
    return query
    select s.id, s.attempt, l.holder, l.renewals, l.renewed_at, coalesce(c.saves, 0), c.saved_at
      from job_state s
      left join lease l on l.id = coalesce(s.lease, s.settled_by)
      left join checkpoint c on c.job_id = s.id and c.name = 'holdfast:progress' and c.attempt = s.attempt
     where s.id = liveness.job and (v_scope = '*' or s.tenant = v_scope);
end $$;
