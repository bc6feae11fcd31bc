-- Usage sums only grow and are never deleted: they are all that remains of purged jobs.
create or replace function guard_usage() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' or (new.tenant, new.day, new.kind) <> (old.tenant, old.day, old.kind)
       or least(new.enqueued - old.enqueued, new.started - old.started, new.succeeded - old.succeeded, new.failed - old.failed,
                new.crashed - old.crashed, new.dead - old.dead, new.cancelled - old.cancelled, new.expired - old.expired,
                new.run_time - old.run_time, new.wait_time - old.wait_time, new.cost - old.cost) < 0 then
        raise exception 'usage: sums cannot be reduced or deleted' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_usage before update or delete on usage for each row execute function guard_usage();

-- Retention: policies clean, and later purge, jobs that ended long enough ago.
--
-- A policy has one pass per action, which walks jobs in id order. Ids sort by creation time, so a job that ended before a
-- moment has an id below that moment's: younger jobs are not even read. A call processes one slice of one pass in one short
-- transaction and saves its position. A process that dies half-way has done nothing, and many can sweep at once, each in
-- another pass. A pass that has reached the present waits for jobs to become due. From time to time it restarts at the first
-- job, for jobs that ended long after they were created: after a twenty-fourth of the policy's age, at most a day.

create or replace function id_since(at timestamptz) returns uuid language sql immutable
return (lpad(to_hex(greatest(0, (extract(epoch from at) * 1000)::bigint)), 12, '0') || repeat('0', 20))::uuid;

-- The state in which a job ended, even if it has been cleaned since.
create or replace function ended_as(p_state state, p_note jsonb) returns text language sql immutable
return case when p_state = 'cleaned' then coalesce(p_note ->> 'was', 'succeeded') else p_state end;

-- Return the policy that applies, by the rule of features/retention/model.py: of the matching policies, one that names the
-- tenant wins, then the kind, then the state.
create or replace function retention_for(p_tenant text, p_kind text, p_state text) returns setof retention
language sql stable set search_path from current as $$
    select r.* from retention r
     where r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*') and (r.state = p_state or r.state = '*' and p_state <> 'dead_letter')
     order by r.tenant = '*', r.kind = '*', r.state = '*' limit 1
$$;

-- Of these jobs, those that this policy decides about and that are due. Excluded: jobs of a workflow that is still running or
-- has dead letters (resumed jobs read the results of others), and jobs that a retry of theirs still needs.
create or replace function retention_due(p_rule retention, p_action text, p_jobs uuid[], p_now timestamptz)
returns table (id uuid, finished_at timestamptz) language sql stable set search_path from current as $$
    select s.id, s.finished_at from job_state s, lateral (select ended_as(s.state, s.note) as was) e
     where s.id = any (p_jobs)
       and s.finished_at <= p_now - span(case p_action when 'clean' then least(p_rule.clean_after, p_rule.purge_after)
                                                                      else p_rule.purge_after end)
       and case p_action when 'clean' then s.state in ('succeeded', 'failed', 'cancelled', 'dead_letter') else s.state = 'cleaned' end
       and p_rule.tenant in (s.tenant, '*') and p_rule.kind in (s.kind, '*')
       and (p_rule.state = e.was or p_rule.state = '*' and e.was <> 'dead_letter')
       and not exists (select from retention r
                        where r.tenant in (s.tenant, '*') and r.kind in (s.kind, '*')
                          and (r.state = e.was or r.state = '*' and e.was <> 'dead_letter')
                          and (r.tenant = '*', r.kind = '*', r.state = '*')
                              < (p_rule.tenant = '*', p_rule.kind = '*', p_rule.state = '*'))
       and (s.workflow_id is null
            or exists (select from workflow w where w.id = s.workflow_id and w.finished_at is not null
                          and (w.dead = 0 or s.state = 'dead_letter')))
       and not exists (select from job r join job_state t on t.id = r.id
                        where r.retry_of = s.id and r.retry_of is not null and (p_action = 'purge' or t.finished_at is null))
$$;

-- Whether the contents of a job are in an archive. A cleaned job never changes any more.
create or replace function is_archived(p_job uuid) returns boolean language sql stable set search_path from current as $$
    select exists (select from archived a join job_state s on s.id = a.job_id
                    where a.job_id = p_job and (s.state = 'cleaned' or s.finished_at = a.finished_at))
$$;

-- The next ids of a pass. A pass for one tenant, or one tenant and kind, uses an index of its own and reads no other jobs.
create or replace function retention_next(p_rule retention, p_after uuid, p_upto uuid, p_look integer) returns uuid[]
language plpgsql stable set search_path from current as $$
begin
    if p_rule.tenant = '*' then
        return array(select j.id from job j where j.id > p_after and j.id <= p_upto order by j.id limit p_look);
    elsif p_rule.kind <> '*' then
        return array(select j.id from job j
                      where j.tenant = p_rule.tenant and j.kind = p_rule.kind and j.id > p_after and j.id <= p_upto
                      order by j.tenant, j.kind, j.id limit p_look);
    end if;
    return array(select u.id
                   from unnest(array['succeeded', 'failed', 'cancelled', 'dead_letter', 'cleaned']) e (state), lateral (
                        select s.id from job_state s
                         where s.tenant = p_rule.tenant and s.state = e.state and s.state not in ('leased', 'in_progress')
                           and s.id > p_after and s.id <= p_upto
                         order by s.id limit p_look) u
                  order by u.id limit p_look);
end $$;

-- The readers of the ledger, and what each has read.
create or replace function ledger_readers() returns table (tenant text, name text, seen pg_snapshot)
language sql stable set search_path from current as $$
    select c.tenant, 'consumer ' || c.name, nullif(split_part(c.cursor, ';', 2), '')::pg_snapshot
      from consumer c where c.cursor not like 'a%'
    union all
    select s.tenant, 'subscription ' || s.name, nullif(split_part(coalesce(s.cursor, ''), ';', 2), '')::pg_snapshot
      from subscription s where s.pattern like 'job.%'
    union all
    select '*', 'usage', nullif(split_part(coalesce(u.cursor, ''), ';', 2), '')::pg_snapshot from usage_place u
$$;

-- Of these jobs, those whose events a reader has not read completely, and the reader's name: a consumer, a subscription or the
-- usage counter. Readers never miss events; one that lags behind holds back the purge of what it has not read. No usage
-- depends on the event that a job was cleaned, so a purge does not wait for the usage counter to reach it.
create or replace function unread_of(p_jobs uuid[]) returns table (id uuid, reader text)
language plpgsql set search_path from current as $$
declare v_scope text := current_setting('holdfast.tenant');
begin
    perform set_config('holdfast.tenant', '*', true);   -- readers of every tenant's events must not miss any
    if scope() is null then
        -- A login pinned to a tenant cannot see the readers of every tenant's events: nothing is purged until a worker without
        -- a pin runs.
        perform set_config('holdfast.tenant', v_scope, true);
        return query select j, 'unknown' from unnest(p_jobs) j;
        return;
    end if;
    return query
    with readers as materialized (select * from ledger_readers())
    select distinct on (e.job_id) e.job_id, r.name from event e join readers r on r.tenant in (e.tenant, '*')
     where e.job_id = any (p_jobs) and pg_visible_in_snapshot(e.xid::text::xid8, r.seen) is not true
       and not (r.name = 'usage' and e.to_state = 'cleaned')
     order by e.job_id, r.name;
    -- Nor does the chain miss events: if a seal covers some events of a job, it must cover all of them. The last event lists
    -- the others; without it a purge could not be told from tampering.
    return query
    select e.job_id, 'seal' from event e, (select s.floor, s.base, s.snapshot::pg_snapshot as seen from seal s order by s.number desc limit 1) l,
           lateral (select e.seq <= l.base or e.seq <= l.floor and pg_visible_in_snapshot(e.xid::text::xid8, l.seen) as sealed) k
     where e.job_id = any (p_jobs) group by e.job_id having bool_or(k.sealed) and not bool_and(k.sealed);
    perform set_config('holdfast.tenant', v_scope, true);
end $$;

-- Delete the contents of jobs. Their facts except the payload, their keys, approval decisions and the ledger stay. A dead
-- letter is discarded first: the state machine has no other path.
create or replace function clean_jobs(p_jobs uuid[]) returns void language plpgsql set search_path from current as $$
declare v_dead uuid[];
begin
    with discarded as (
        update job_state s set state = 'cancelled', note = '{"reason": "retention"}'
         where s.id = any (p_jobs) and s.state = 'dead_letter' returning s.id)
    select array_agg(id) into v_dead from discarded;
    update job_state s
       set state = 'cleaned', error_message = null,
           note = jsonb_build_object('was', case when s.id = any (v_dead) then 'dead_letter' else s.state end)
     where s.id = any (p_jobs);
    perform orphan_files(p_jobs, clock_now());   -- its files in the artifact store and on hosts
    update job j set payload = '{}' where j.id = any (p_jobs) and j.payload::text <> '{}';
    delete from result r where r.job_id = any (p_jobs);
    delete from checkpoint c where c.job_id = any (p_jobs);
    delete from artifact a where a.job_id = any (p_jobs);
    delete from attempt_log l where l.job_id = any (p_jobs);
    delete from replaced_payload r where r.job_id = any (p_jobs);
    delete from step t where t.job_id = any (p_jobs);
end $$;

-- Delete cleaned jobs completely, with every row that refers to them (tests/contract/test_retention_catalogue.py lists every
-- such column).
create or replace function purge_jobs(p_jobs uuid[]) returns void language plpgsql set search_path from current as $$
declare
    v_approvals uuid[] := array(select g.id from approval g where g.job_id = any (p_jobs));
    v_flows uuid[] := array(select distinct n.workflow_id from node n where n.job_id = any (p_jobs));
    v_due   record;
begin
    delete from idempotency i using job j
     where j.id = any (p_jobs) and j.idempotency_key is not null
       and (i.tenant, i.kind, i.key, i.job_id) = (j.tenant, j.kind, j.idempotency_key, j.id);
    delete from content c using job j
     where j.id = any (p_jobs) and j.content_key is not null and (c.tenant, c.key, c.job_id) = (j.tenant, j.content_key, j.id);
    delete from job_tag t using (select j.tenant, j.id, tag_entries(j.tags, j.uses) as tag from job j
                                  where j.id = any (p_jobs) and (j.tags <> '{}' or j.uses is not null)) g
     where (t.tenant, t.tag, t.job_id) = (g.tenant, g.tag, g.id);
    delete from job_state s where s.id = any (p_jobs);
    delete from job j where j.id = any (p_jobs);
    update dead_letter_group g set error_message = '[purged]' where g.sample_job = any (p_jobs) and g.error_message <> '[purged]';
    perform record_removed(p_jobs);   -- the seals of the ledger stay verifiable without them
    delete from event e where e.job_id = any (p_jobs);
    delete from result r where r.job_id = any (p_jobs);
    delete from checkpoint c where c.job_id = any (p_jobs);
    delete from artifact a where a.job_id = any (p_jobs);
    delete from attempt_log l where l.job_id = any (p_jobs);
    delete from replaced_payload r where r.job_id = any (p_jobs);
    delete from step t where t.job_id = any (p_jobs);
    delete from watch w where w.job_id = any (p_jobs);
    delete from occupied_slot p where p.job_id = any (p_jobs);
    delete from app_event e where e.job_id = any (p_jobs) and e.job_id is not null and read_by_all(e.tenant, e.xid);
    delete from delivery d where d.job_id = any (p_jobs) and d.job_id is not null;
    delete from redriven_as r where r.job_id = any (p_jobs);
    delete from redriven_as r where r.new_id = any (p_jobs);
    delete from reference r where r.job_id = any (p_jobs);
    delete from resealed r where r.job_id = any (p_jobs);
    delete from quarantine q where q.job_id = any (p_jobs);
    delete from archived a where a.job_id = any (p_jobs);
    if v_approvals <> '{}' then
        delete from approval g where g.id = any (v_approvals);
        delete from vote v where v.approval_id = any (v_approvals);
        delete from approval_token t where t.approval_id = any (v_approvals);
    end if;
    for v_due in delete from made_from m where m.job_id = any (p_jobs) returning m.schedule_id, m.due_at, m.job_id loop
        delete from fire f where f.schedule_id = v_due.schedule_id and f.due_at = v_due.due_at and f.job_id = v_due.job_id;
    end loop;
    if v_flows <> '{}' then
        delete from node n where n.job_id = any (p_jobs);
        delete from dependency d where d.child = any (p_jobs);
        delete from dependency d where d.parent = any (p_jobs);
        delete from workflow w where w.id = any (v_flows) and not exists (select from node n where n.workflow_id = w.id);
        delete from callback c where c.workflow_id = any (v_flows) and not exists (select from workflow w where w.id = c.workflow_id);
    end if;
end $$;

-- Process one slice of the retention pass that is due. No row if none is due.
create or replace function sweep_retention(want integer default 200, look integer default 2000, for_tenant text default '*')
returns table (action text, looked integer, done integer, held integer, held_by text, more boolean)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(sweep_retention.for_tenant, 'retention');
    v_zero  uuid := '00000000-0000-0000-0000-000000000000';
    v_pass  retention_pass;
    v_rule  retention;
    v_age   double precision;
    v_top   uuid;
    v_ids   uuid[];
    v_found uuid[] := '{}';
    v_due   uuid[];
    v_go    uuid[];
begin
    if halted() then
        return;
    end if;
    held := 0;
    if v_scope = '*' then
        perform from upkeep u where u.prune_at <= v_now for update skip locked;
        if found then
            action := 'prune';
            perform add_partitions(v_now);
            done := prune_bookkeeping(sweep_retention.want, v_now);
            looked := done;
            more := done >= sweep_retention.want;
            update upkeep u set prune_at = v_now + case when more then interval '0' else interval '10 minutes' end;
            return next;
            return;
        end if;
        select p.jobs, p.removed, p.held_by into looked, done, held_by from purge_partition(v_now) p;
        if found and looked + done > 0 then
            action := 'purge';
            more := true;
            return next;
            return;
        end if;
        held_by := null;
    end if;
    select p.* into v_pass from retention_pass p
     where p.again_at <= v_now and (v_scope = '*' or p.tenant = v_scope)
     order by p.again_at, p.action limit 1 for update skip locked;
    if not found then
        return;
    end if;
    action := v_pass.action;
    select r.* into v_rule from retention r where (r.tenant, r.kind, r.state) = (v_pass.tenant, v_pass.kind, v_pass.state);
    v_age := case v_pass.action when 'clean' then least(v_rule.clean_after, v_rule.purge_after) else v_rule.purge_after end;
    if v_pass.restart_at <= v_now then
        v_pass.reached := v_zero;
        v_pass.looked := 0;
        v_pass.restart_at := null;
        v_pass.held := 0;
        v_pass.held_by := null;
    end if;
    v_top := id_since(v_now - span(v_age) + interval '1 ms');
    if v_pass.action = 'purge' then   -- a purge never overtakes the cleaning
        v_top := least(v_top, (select p.reached from retention_pass p
                                where (p.tenant, p.kind, p.state, p.action) = (v_pass.tenant, v_pass.kind, v_pass.state, 'clean')));
    end if;
    if v_pass.action = 'purge' or v_rule.clean_after is null or v_rule.clean_after >= v_rule.purge_after then
        v_top := rows_until(v_top, v_age, v_now);
    end if;
    v_ids := retention_next(v_rule, v_pass.reached, v_top, sweep_retention.look);
    looked := coalesce(cardinality(v_ids), 0);
    -- Part by part: usually the first part contains enough jobs.
    for v_from in 1 .. looked by sweep_retention.want loop
        v_found := v_found || array(select d.id from retention_due(v_rule, v_pass.action,
                                                   v_ids[v_from : v_from + sweep_retention.want - 1], v_now) d);
        exit when cardinality(v_found) >= sweep_retention.want;
    end loop;
    select array_agg(h.id) into v_due from (
        select s.id from job_state s
         where s.id = any (v_found)
           and s.state in ('succeeded', 'failed', 'cancelled', 'dead_letter', 'cleaned')
           and (s.state = 'cleaned') = (v_pass.action = 'purge')
         order by s.id limit sweep_retention.want for update skip locked) h;
    v_go := v_due;
    if v_rule.archive and v_due is not null then
        select array_agg(d order by d) filter (where is_archived(d)), count(*) filter (where not is_archived(d)) into v_go, held
          from unnest(v_due) d;
        held_by := case when held > 0 then 'archive' end;
    end if;
    if v_pass.action = 'clean' and v_go is not null then
        perform clean_jobs(v_go);
    elsif v_go is not null then
        select array_agg(d) filter (where u.id is null), held + count(u.id), coalesce(min(u.reader), held_by) into v_go, held, held_by
          from unnest(v_go) d
          left join (select r.id, min(r.reader) as reader from unread_of(v_go) r group by r.id) u on u.id = d;
        if v_go is not null then
            perform purge_jobs(v_go);
        end if;
    end if;
    done := coalesce(cardinality(v_go), 0);
    if coalesce(cardinality(v_due), 0) >= sweep_retention.want then
        v_pass.reached := v_due[cardinality(v_due)];   -- more of the jobs read may be due
        more := true;
    else
        more := looked >= sweep_retention.look;
        v_pass.reached := coalesce(v_ids[looked], v_pass.reached);
    end if;
    v_pass.looked := v_pass.looked + looked;
    v_pass.held := v_pass.held + held;
    v_pass.held_by := coalesce(held_by, v_pass.held_by);
    if not more then   -- less often the longer its walk, and soon if only a reader lagged behind
        v_pass.restart_at := least(v_pass.restart_at, v_now + span(
            v_pass.looked / 10000 + case when v_pass.held > 0 then 10 else least(86400, greatest(60, v_age / 24)) end));
    end if;
    update retention_pass p
       set reached = v_pass.reached, looked = v_pass.looked, restart_at = v_pass.restart_at, held = v_pass.held,
           held_by = v_pass.held_by, again_at = v_now + case when more then interval '0' else interval '10 s' end
     where (p.tenant, p.kind, p.state, p.action) = (v_pass.tenant, v_pass.kind, v_pass.state, v_pass.action);
    return next;
end $$;

-- Return what each policy would do now, based on a sample of at most `most` jobs, and the orphaned files that cleaned jobs
-- have left elsewhere.
create or replace function preview_retention(most integer default 10000, for_tenant text default null)
returns table (tenant text, kind text, state text, action text, due integer, capped boolean, oldest_at timestamptz,
               held bigint, held_by text) language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(preview_retention.for_tenant);
    v_pass  retention_pass;
    v_rule  retention;
    v_ids   uuid[];
    v_age   double precision;
begin
    for v_pass in select p.* from retention_pass p
                   where v_scope = '*' or p.tenant in (v_scope, '*')
                   order by p.tenant, p.kind, p.state, p.action loop
        select r.* into v_rule from retention r where (r.tenant, r.kind, r.state) = (v_pass.tenant, v_pass.kind, v_pass.state);
        v_age := case v_pass.action when 'clean' then least(v_rule.clean_after, v_rule.purge_after) else v_rule.purge_after end;
        v_ids := retention_next(v_rule, '00000000-0000-0000-0000-000000000000',
                                id_since(v_now - span(v_age) + interval '1 ms'), preview_retention.most);
        select count(*), min(d.finished_at) into due, oldest_at from retention_due(v_rule, v_pass.action, v_ids, v_now) d;
        tenant := v_pass.tenant;
        kind := v_pass.kind;
        state := v_pass.state;
        action := v_pass.action;
        capped := coalesce(cardinality(v_ids), 0) >= preview_retention.most;
        held := v_pass.held;
        held_by := v_pass.held_by;
        return next;
    end loop;
    -- Files still to be deleted in the artifact store.
    select count(*), min(l.at) into due, oldest_at
      from (select o.at from orphaned_file o where v_scope = '*' or o.tenant = v_scope limit preview_retention.most) l;
    if due > 0 then
        tenant := v_scope;
        kind := '*';
        state := '*';
        action := 'delete';
        capped := due >= preview_retention.most;
        held := 0;
        held_by := null;
        return next;
    end if;
end $$;

-- --- policies ---

-- Set an operator's retention policy for a kind and state or replace it, and return its row. Ages are in seconds after the end
-- of a job; null keeps it. With `archive`, jobs stay until they are archived.
create or replace function set_retention(kind text default '*', state text default '*', clean_after double precision default null,
                                         purge_after double precision default null, archive boolean default false,
                                         actor text default null, for_tenant text default null) returns setof retention
language plpgsql security definer set search_path from current as $$
begin
    return query select * from keep_for(set_retention.kind, set_retention.state, set_retention.clean_after,
                                        set_retention.purge_after, set_retention.archive, false, set_retention.actor, set_retention.for_tenant);
end $$;

-- Set the retention policy that a program declares for its own kind, and return its row. An operator's policy for the same
-- kind takes precedence.
create or replace function declare_retention(kind text, clean_after double precision default null,
                                             purge_after double precision default null, actor text default null,
                                             for_tenant text default null) returns setof retention
language plpgsql security definer set search_path from current as $$
begin
    return query select * from keep_for(declare_retention.kind, '*', declare_retention.clean_after,
                                        declare_retention.purge_after, false, true, declare_retention.actor, declare_retention.for_tenant);
end $$;

create or replace function keep_for(p_kind text, p_state text, p_clean double precision, p_purge double precision,
                                    p_archive boolean, p_declared boolean, p_actor text, p_tenant text) returns setof retention
language plpgsql set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(p_tenant, nullif(p_actor, ''));
begin
    insert into retention as r (tenant, kind, state, clean_after, purge_after, archive, declared, set_by, created_at, updated_at)
    values (v_scope, p_kind, p_state, p_clean, p_purge, p_archive, p_declared, actor(), v_now, v_now)
    on conflict (tenant, kind, state) do update
       set clean_after = excluded.clean_after, purge_after = excluded.purge_after, archive = excluded.archive,
           declared = excluded.declared, set_by = excluded.set_by, updated_at = excluded.updated_at
     where (r.declared or not excluded.declared)
       and (r.clean_after, r.purge_after, r.archive, r.declared)
           is distinct from (excluded.clean_after, excluded.purge_after, excluded.archive, excluded.declared);
    if found then
        perform restart_passes(v_scope, v_now);
        if p_purge is not null then   -- usage is counted before jobs are purged
            insert into usage_place (cursor, updated_at) values (null, v_now) on conflict do nothing;
        end if;
    end if;
    return query select r.* from retention r where (r.tenant, r.kind, r.state) = (v_scope, p_kind, p_state);
end $$;

-- Delete a retention policy. Returns false if it does not exist.
create or replace function delete_retention(kind text default '*', state text default '*', actor text default null,
                                            for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(delete_retention.for_tenant, nullif(delete_retention.actor, ''));
    v_found boolean;
begin
    delete from retention r where (r.tenant, r.kind, r.state) = (v_scope, delete_retention.kind, delete_retention.state);
    v_found := found;
    if v_found then
        perform restart_passes(v_scope, clock_now());
    end if;
    return v_found;
end $$;

-- After a change of the policies each policy gets its passes, and they start at the first job: a job that one policy kept may
-- be due under another.
create or replace function restart_passes(p_scope text, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
begin
    delete from retention_pass p where p_scope = '*' or p.tenant = p_scope;
    insert into retention_pass (tenant, kind, state, action, again_at)
    select r.tenant, r.kind, r.state, v.action, p_now from retention r, (values ('clean'), ('purge')) v(action)
     where (p_scope = '*' or r.tenant = p_scope)
       and case v.action when 'clean' then coalesce(r.clean_after, r.purge_after) else r.purge_after end is not null;
end $$;
