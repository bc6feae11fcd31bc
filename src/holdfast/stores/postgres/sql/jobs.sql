-- Return the data that explains why a job is not running: the details of its last transition, who holds it, which workers
-- could claim it, and how many jobs are ahead of it. Lease tokens are not returned, and of other tenants only the number of
-- jobs: the ranges of the claim index that are read cover the whole queue, and are bounded.
create or replace function circumstances(job uuid, most integer default 1000, for_tenant text default null)
returns table (now timestamptz, note jsonb, holder text, label text, held_until timestamptz, held boolean, ahead integer,
               workers jsonb, renewed_at timestamptz) language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
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

-- Return live workers and their running jobs. Lease tokens are not returned; of other tenants' jobs only the number is.
create or replace function list_workers(most integer default 200, for_tenant text default null)
returns table (label text, holder text, tenant text, kinds text[], queues text[], slots integer, busy bigint,
               opened_at timestamptz, renewed_at timestamptz, until timestamptz, version text, stop_request text,
               stop_requested_at timestamptz, stop_requested_by text, job_ids text[])
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    v_scope text := enter(list_workers.for_tenant);
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
          from (select l.* from lease l where l.ended_at is null and l.until > v_now and l.name <> 'reservation'   -- not a worker
                   and (v_scope = '*' or l.tenant in (v_scope, '*'))
                 order by l.renewed_at desc limit greatest(1, least(list_workers.most, 1000))) w
         order by w.renewed_at desc;
    perform set_config('holdfast.tenant', v_scope, true);
end $$;

-- --- indexes on payload keys ---

-- An index on a payload key is a pair of triggers on `job` that maintain rows of `job_tag`: `payload:` and a hash of the path
-- and the value. It is not an expression index: under row-level security the planner uses an index only for leakproof
-- comparisons, and reading JSON is not leakproof. The hash has a salt that no role can read, so that no role can guess values
-- of payloads they may not see. Without such an index there is no trigger, and an enqueue pays nothing.
create or replace function payload_tag(p_path text, p_value text) returns text
language plpgsql stable set search_path from current as $$
begin
    return 'payload:' || md5((select d.payload_salt from dispatch d) || p_path || ':' || p_value);
end $$;

create or replace function index_payloads() returns trigger language plpgsql set search_path from current as $$
declare
    v_path text := tg_argv[0];
    v_keys text[] := string_to_array(v_path, '.');
begin
    if tg_op = 'UPDATE' then   -- retention has emptied payloads, or an operator has replaced one
        delete from job_tag t using gone g
         where g.payload #>> v_keys is not null and t.tenant = g.tenant and t.job_id = g.id
           and t.tag = payload_tag(v_path, g.payload #>> v_keys);
    end if;
    insert into job_tag (tenant, tag, job_id)
    select a.tenant, payload_tag(v_path, a.payload #>> v_keys), a.id from added a
     where a.payload #>> v_keys is not null and a.payload -> '$holdfast' is null on conflict do nothing;
    return null;
end $$;

-- Return the payload keys that have a complete index, as payload.customer.id.
create or replace function payload_indexes() returns setof text
language plpgsql stable security definer set search_path from current as $$
begin
    return query
    select 'payload.' || replace(encode(t.tgargs, 'escape'), E'\\000', '') from pg_trigger t
     where t.tgrelid = 'job'::regclass and t.tgname like E'payload\\_%\\_added' and obj_description(t.oid, 'pg_trigger') = 'complete'
     order by 1;
end $$;

-- Build an index, one batch of jobs per call: the first call creates the triggers, the last returns null. For the owner of the
-- tables. `p_name` is unique for the path (stores/job_reads.py).
create or replace function fill_payload_index(p_name text, p_path text, p_after uuid, p_most integer default 5000) returns uuid
language plpgsql set search_path from current set lock_timeout = '20s' as $$
declare
    v_keys text[] := string_to_array(p_path, '.');
    v_last uuid;
    v_seen integer;
begin
    perform enter('*');
    if p_after is null then
        execute format('create or replace trigger %I after insert on job referencing new table as added'
            ' for each statement execute function index_payloads(%L)', p_name || '_added', p_path);
        execute format('create or replace trigger %I after update on job referencing old table as gone new table as added'
            ' for each statement execute function index_payloads(%L)', p_name || '_gone', p_path);
    end if;
    with batch as materialized (
        select j.id, j.tenant, j.payload from job j where p_after is null or j.id > p_after order by j.id limit p_most),
    tagged as (
        insert into job_tag (tenant, tag, job_id)
        select s.tenant, payload_tag(p_path, s.payload #>> v_keys), s.id from batch s
         where s.payload #>> v_keys is not null and s.payload -> '$holdfast' is null on conflict do nothing)
    select s.id, count(*) over () into v_last, v_seen from batch s order by s.id desc limit 1;
    if coalesce(v_seen, 0) < p_most then
        execute format('comment on trigger %I on job is ''complete''', p_name || '_added');
        return null;
    end if;
    return v_last;
end $$;

create or replace function remove_payload_index(p_name text, p_path text) returns void
language plpgsql set search_path from current set lock_timeout = '20s' as $$
declare v_keys text[] := string_to_array(p_path, '.');
begin
    perform enter('*');
    execute format('drop trigger if exists %I on job', p_name || '_added');
    execute format('drop trigger if exists %I on job', p_name || '_gone');
    delete from job_tag t using job j
     where t.job_id = j.id and t.tenant = j.tenant and j.payload #>> v_keys is not null
       and t.tag = payload_tag(p_path, j.payload #>> v_keys);
end $$;

-- Return jobs of one tenant whose payload has this text under a key, newest first. Requires an index on the key: without one,
-- the caller has to bound the search. Payloads that the reader may not see, because they are restricted or encrypted, are not
-- found: a match would reveal them.
create or replace function jobs_by_payload(path text, value text, before uuid default null, most integer default 100,
                                           for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current set jit = off
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
    v_scope text := enter(jobs_by_payload.for_tenant);
    v_tag   text := payload_tag(jobs_by_payload.path, jobs_by_payload.value);
begin
    if v_scope = '*' or 'payload.' || jobs_by_payload.path not in (select p from payload_indexes() p) then
        raise exception 'no index on payload.%, or no tenant given', jobs_by_payload.path
            using errcode = 'ZH010', hint = 'Create an index: holdfast jobs index payload.KEY';
    end if;
    return query
    select t.job_id from job_tag t join job j on j.id = t.job_id
     where t.tenant = v_scope and t.tag = v_tag and (jobs_by_payload.before is null or t.job_id < jobs_by_payload.before)
       and not exists (select from payload_rule r where r.classification = 'restricted'
                          and r.tenant in (j.tenant, '*') and r.kind in (j.kind, '*'))
     order by t.job_id desc limit greatest(1, least(jobs_by_payload.most, 1000));
end $$;

-- Return the writes of the newest attempt that get no event of their own: renewals of its lease and progress reports. A lease
-- renews for all its jobs; a worker that was declared lost has none.
create or replace function liveness(job uuid, for_tenant text default null)
returns table (job_id uuid, attempt integer, worker text, renewals integer, renewed_at timestamptz, reports integer, reported_at timestamptz)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(liveness.for_tenant);
begin
    return query
    select s.id, s.attempt, l.holder, l.renewals, l.renewed_at, coalesce(c.saves, 0), c.saved_at
      from job_state s
      left join lease l on l.id = coalesce(s.lease, s.settled_by)
      left join checkpoint c on c.job_id = s.id and c.name = 'holdfast:progress' and c.attempt = s.attempt
     where s.id = liveness.job and (v_scope = '*' or s.tenant = v_scope);
end $$;
