-- The partitions of the ledger, and the purge of a whole partition (docs/adr/0018).
--
-- `event` is partitioned by job id, and ids begin with the time. When all jobs of a partition are due, they are purged
-- together: two large deletes (job_state, job), a few range deletes, and TRUNCATE of the partition, which returns its
-- space to the operating system. Jobs that must stay (dead letters, workflows, other policies) are left out of it; with
-- more than 1,000 of them, or fewer than 1,000 jobs that may go, the passes purge the jobs by rows, as everywhere else.
--
-- A purge has two steps, each one transaction. The first announces it: an action with the numbers of all events. The
-- second removes them after a seal covers that action. So the chain has the list from a time when the events were still there,
-- and `audit verify` compares a purge with it. If a job in the partition has changed in between, nothing is
-- removed, the announcement is withdrawn, and the purge is announced again.

create or replace function time_of(p_id uuid) returns timestamptz language sql immutable
return to_timestamp(('x' || substr(replace(p_id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0);

-- Statements on `event` fire the triggers of `event`, and only statements that name a partition fire these.
create or replace function refuse_partition() returns trigger language plpgsql as $$
begin
    raise exception '%: rows are never changed (% refused)', tg_table_name, lower(tg_op)
        using errcode = 'ZH002', hint = 'This is a partition of the ledger, which triggers write.';
end $$;

create or replace function guard_partition(p_name text) returns void language plpgsql set search_path from current as $$
declare v_op text;
begin
    foreach v_op in array array['insert', 'update', 'delete', 'truncate'] loop
        execute format('create or replace trigger refuse_%s before %s on %I for each statement execute function refuse_partition()',
                       v_op, v_op, p_name);
    end loop;
    execute format('alter table %I enable row level security', p_name);
    execute format('alter table %I force row level security', p_name);
    execute format('drop policy if exists tenancy on %I', p_name);
    execute format('create policy tenancy on %I using (tenant = (select scope()) or (select scope()) = ''*'')', p_name);
end $$;

-- Create a partition as a separate table and attach it. This does not block the statements that write events; creating it in
-- place would.
create or replace function make_partition(p_low timestamptz, p_high timestamptz) returns void
language plpgsql set search_path from current as $$
declare v_name text := 'event_' || to_char(p_low at time zone 'utc', 'YYYYMMDD_HH24MISS');
begin
    execute format('create table %I (like event including defaults)', v_name);
    perform guard_partition(v_name);
    execute format('alter table event attach partition %I for values from (%L) to (%L)', v_name, id_since(p_low), id_since(p_high));
    insert into event_partition (name, low, high) values (v_name, id_since(p_low), id_since(p_high));
end $$;

-- Time span of one partition: at most a twenty-fourth of the age at which most jobs are purged, which is how late a purge may
-- be. Without a policy that purges, partitions are large: nothing will be purged, and readers visit each one.
create or replace function partition_width() returns interval language sql stable set search_path from current as $$
    select coalesce((
        select w.width from unnest(array[interval '30 days', '7 days', '1 day', '6 hours', '1 hour']) w(width),
               (select coalesce(max(r.purge_after) filter (where (r.tenant, r.kind, r.state) = ('*', '*', '*')), max(r.purge_after)) as age
                  from retention r where r.purge_after is not null) a
         where a.age is not null and extract(epoch from w.width) <= greatest(a.age / 24, 3600) order by w.width desc limit 1), interval '30 days')
$$;

-- Keep a partition ready for the jobs of the next day. Without one, events go to `event_rest`, and nothing fails. Returns how
-- many were created.
create or replace function add_partitions(p_now timestamptz) returns integer
language plpgsql set search_path from current set lock_timeout = '500ms' as $$
declare
    v_width   double precision := extract(epoch from partition_width());
    v_from    timestamptz := (select time_of(p.high) from event_partition p order by p.high desc limit 1);
    v_made    integer := 0;
begin
    if v_from is null then
        v_from := to_timestamp(floor(extract(epoch from p_now) / v_width) * v_width);
    elsif v_from < p_now then   -- no worker was running for a while; the jobs of that time are in `event_rest`
        v_from := date_trunc('second', p_now) + interval '1 minute';
    end if;
    while v_from < p_now + least(span(v_width), interval '1 day') and v_made < 3 loop
        perform make_partition(v_from, to_timestamp((floor(extract(epoch from v_from) / v_width) + 1) * v_width));
        v_from := (select time_of(p.high) from event_partition p order by p.high desc limit 1);
        v_made := v_made + 1;
    end loop;
    return v_made;
exception
    -- A reader holds the default partition, another worker was first, or jobs with ids of that time are in `event_rest` already.
    when lock_not_available or duplicate_table or unique_violation or check_violation or deadlock_detected then
        return 0;
end $$;

-- The id up to which a pass may remove jobs by rows. Partitions that will be purged as a whole are left alone until that could
-- have happened: a twenty-fourth of the age after the last of their jobs was created.
create or replace function rows_until(p_top uuid, p_age double precision, p_now timestamptz) returns uuid
language sql stable set search_path from current as $$
    select least(p_top, (
        select p.low from event_partition p
         where p.low < p_top
           and (p.announced is not null
                or p.high > id_since(p_now - span(p_age * 25 / 24)) and time_of(p.high) - time_of(p.low) <= span(p_age / 24))
         order by p.low limit 1))
$$;

-- Jobs of a range that are needed by a retry outside of the range or by one that is kept.
create or replace function retried_outside(p_low uuid, p_high uuid, p_kept uuid[]) returns uuid[]
language sql stable set search_path from current as $$
    select array(select r.retry_of from job r
                  where r.retry_of >= p_low and r.retry_of < p_high and not r.retry_of = any (p_kept)
                    and (r.id < p_low or r.id >= p_high or r.id = any (p_kept)) limit 2000)
$$;

create or replace function policies_digest() returns text language sql stable set search_path from current as $$
    select md5(coalesce(string_agg(r::text, ';' order by r.tenant, r.kind, r.state), '')) from retention r
$$;

-- The jobs of a range that have to stay, up to `p_most` of them: not finished, not due, dead letters, jobs of workflows, and
-- jobs that a retry outside of the range still needs.
create or replace function kept_in(p_low uuid, p_high uuid, p_most integer, p_now timestamptz) returns uuid[]
language plpgsql stable set search_path from current set jit = off as $$
declare
    v_kept uuid[];
    v_more uuid[];
begin
    -- Sums first: they usually show that every job may go.
    with ends as materialized (
        select s.tenant, s.kind, ended_as(s.state, case when s.state = 'cleaned' then s.note end) as state, max(s.finished_at) as last,
               bool_and(s.state in ('succeeded', 'failed', 'cancelled', 'cleaned') and s.finished_at is not null and s.workflow_id is null) as plain
          from job_state s where s.id >= p_low and s.id < p_high group by 1, 2, 3
    ), ages as materialized (
        -- Jobs that have to be archived first are purged by rows.
        select e.*, case when not r.archive then p_now - span(r.purge_after) end as until from ends e left join lateral retention_for(e.tenant, e.kind, e.state) r on true)
    select case when bool_and(a.plain and a.until is not null and a.last <= a.until) then '{}'::uuid[]
                else array(
                    select s.id from job_state s
                      left join ages g on g.tenant = s.tenant and g.kind = s.kind and g.state = ended_as(s.state, s.note)
                     where s.id >= p_low and s.id < p_high
                       and (s.state in ('succeeded', 'failed', 'cancelled', 'cleaned') and s.workflow_id is null
                            and s.finished_at <= g.until) is not true
                     order by s.id limit p_most + 1) end
      into v_kept from ages a;
    loop
        v_more := retried_outside(p_low, p_high, v_kept);
        exit when v_more = '{}' or cardinality(v_kept) > p_most;
        v_kept := v_kept || v_more;
    end loop;
    return v_kept;
end $$;

-- The reader that has not read all events of a range yet: a consumer, a subscription, the usage counter or the chain of seals.
-- Null: all have.
create or replace function unread_in(p_low uuid, p_high uuid) returns text
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_reader record;
    v_seal   record;
begin
    select s.floor, s.base, s.snapshot::pg_snapshot as seen into v_seal from seal s order by s.number desc limit 1;
    if not found or exists (select from event e where e.job_id >= p_low and e.job_id < p_high and e.seq > v_seal.floor)
       or exists (select from event e where e.job_id >= p_low and e.job_id < p_high and e.seq > v_seal.base
                     and e.xid >= pg_snapshot_xmin(v_seal.seen)::text::bigint
                     and not pg_visible_in_snapshot(e.xid::text::xid8, v_seal.seen)) then
        return 'seal';
    end if;
    for v_reader in select r.* from ledger_readers() r order by r.name loop
        if exists (select from event e where e.job_id >= p_low and e.job_id < p_high
                      and e.xid >= coalesce(pg_snapshot_xmin(v_reader.seen)::text::bigint, 0)
                      and v_reader.tenant in (e.tenant, '*') and pg_visible_in_snapshot(e.xid::text::xid8, v_reader.seen) is not true) then
            return v_reader.name;
        end if;
    end loop;
    return null;
end $$;

-- Announce the purge: the events that will be deleted, by number and by tenant. Returns the number of jobs; 0 if there are too
-- few.
create or replace function announce_purge(p_part event_partition, p_high uuid, p_kept uuid[]) returns integer
language plpgsql set search_path from current set jit = off as $$
declare
    v_jobs   integer;
    v_told   jsonb;
    v_number bigint;
begin
    select count(*) - cardinality(p_kept) into v_jobs from job_state s where s.id >= p_part.low and s.id < p_high;
    if v_jobs < 1000 then
        return 0;
    end if;
    with going as materialized (
        select e.seq, e.tenant from event e
         where e.job_id >= p_part.low and e.job_id < p_high
           and (p_kept = '{}' or not exists (select from unnest(p_kept) k where k = e.job_id))
    ), islands as (
        select min(n.seq) as low, max(n.seq) as high
          from (select g.seq, g.seq - row_number() over (order by g.seq) as island from going g) n group by n.island
    ), tenants as (
        select g.tenant, jsonb_build_array(count(*), min(g.seq), max(g.seq)) as span from going g group by g.tenant)
    select jsonb_build_object(
               'from', p_part.low, 'below', p_high, 'jobs', v_jobs, 'kept', to_jsonb(p_kept),
               'xmin', pg_snapshot_xmin(ledger_snapshot())::text, 'policies', policies_digest(),
               'events', (select string_agg(case when i.low = i.high then i.low::text else i.low || '-' || i.high end, ',' order by i.low)
                            from islands i),
               'tenants', (select jsonb_object_agg(t.tenant, t.span) from tenants t))
      into v_told;
    insert into action (tenant, at, actor, type, subject, name, changed)
    values ('*', clock_now(), actor(), 'announce', 'ledger', p_part.name, v_told) returning seq into v_number;
    update event_partition p set announced = v_number where p.name = p_part.name;
    return v_jobs;
end $$;

-- Delete the jobs of a range except `p_kept`, with every row that refers to them (tests/contract/test_retention_catalogue.py
-- lists every such column), as purge_jobs does for a list of jobs. Jobs of workflows are among the kept. The events are
-- deleted afterwards.
create or replace function purge_range(p_low uuid, p_high uuid, p_kept uuid[]) returns void
language plpgsql set search_path from current set jit = off as $$
declare
    v_approvals uuid[] := array(select g.id from approval g where g.job_id >= p_low and g.job_id < p_high and not g.job_id = any (p_kept));
    v_pair      text[];
    v_some      record;
begin
    select bool_or(j.payload::text like '{"$holdfast":%') as stored, bool_or(j.idempotency_key is not null) as keyed,
           bool_or(j.content_key is not null) as content, bool_or(j.tags <> '{}' or j.uses is not null) as tagged
      into v_some from job j where j.id >= p_low and j.id < p_high;
    perform orphan_files(array(
        select f.id from (
            select j.id from job j where v_some.stored and j.id >= p_low and j.id < p_high and j.payload::text like '{"$holdfast":%'
            union select r.job_id from result r where r.job_id >= p_low and r.job_id < p_high and (r.ref is not null or r.value::text like '{"$holdfast":%')
            union select a.job_id from artifact a where a.job_id >= p_low and a.job_id < p_high
            union select l.job_id from attempt_log l where l.job_id >= p_low and l.job_id < p_high and l.ref is not null
            union select r.job_id from replaced_payload r where r.job_id >= p_low and r.job_id < p_high) f
         where not f.id = any (p_kept)), clock_now());
    if v_some.keyed then
        delete from idempotency i using job j
         where j.id >= p_low and j.id < p_high and j.idempotency_key is not null and not j.id = any (p_kept)
           and (i.tenant, i.kind, i.key, i.job_id) = (j.tenant, j.kind, j.idempotency_key, j.id);
    end if;
    if v_some.content then
        delete from content c using job j
         where j.id >= p_low and j.id < p_high and j.content_key is not null and not j.id = any (p_kept)
           and (c.tenant, c.key, c.job_id) = (j.tenant, j.content_key, j.id);
    end if;
    if v_some.tagged then
        delete from job_tag t using (
                select j.tenant, j.id, tag_entries(j.tags, j.uses) as tag from job j
                 where j.id >= p_low and j.id < p_high and (j.tags <> '{}' or j.uses is not null) and not j.id = any (p_kept)) g
         where (t.tenant, t.tag, t.job_id) = (g.tenant, g.tag, g.id);
    end if;
    foreach v_pair slice 1 in array array[
            ['job_state', 'id'], ['job', 'id'], ['result', 'job_id'], ['checkpoint', 'job_id'], ['artifact', 'job_id'], ['step', 'job_id'],
            ['attempt_log', 'job_id'], ['replaced_payload', 'job_id'],
            ['watch', 'job_id'], ['occupied_slot', 'job_id'], ['delivery', 'job_id'], ['redriven_as', 'job_id'], ['redriven_as', 'new_id'],
            ['reference', 'job_id'], ['resealed', 'job_id'], ['quarantine', 'job_id'], ['archived', 'job_id']] loop
        execute format('delete from %1$I x where x.%2$I >= $1 and x.%2$I < $2', v_pair[1], v_pair[2])
            || case when p_kept <> '{}' then format(' and not exists (select from unnest($3) k where k = x.%I)', v_pair[2]) else '' end
          using p_low, p_high, p_kept;
    end loop;
    delete from app_event e where e.job_id >= p_low and e.job_id < p_high and not e.job_id = any (p_kept) and read_by_all(e.tenant, e.xid);
    if v_approvals <> '{}' then
        delete from approval g where g.id = any (v_approvals);
        delete from vote v where v.approval_id = any (v_approvals);
        delete from approval_token t where t.approval_id = any (v_approvals);
    end if;
    with made as (
        delete from made_from m where m.job_id >= p_low and m.job_id < p_high and not m.job_id = any (p_kept)
        returning m.schedule_id, m.due_at, m.job_id)
    delete from fire f using made m where f.schedule_id = m.schedule_id and f.due_at = m.due_at and f.job_id = m.job_id;
end $$;

-- Delete the events of a partition below `p_high` except those of `p_kept`. TRUNCATE needs an exclusive lock on the partition
-- for a moment: a session that holds it for longer than the timeout (a backup, for example) postpones the whole purge. The few
-- rows that stay are written again unchanged, without the triggers that would refuse them.
create or replace function empty_partition(p_part event_partition, p_high uuid, p_kept uuid[]) returns void
language plpgsql set search_path from current set lock_timeout = '500ms' set jit = off as $$
declare
    v_rows event[] := array(select e from event e where e.job_id >= p_part.low and e.job_id < p_high and e.job_id = any (p_kept));
begin
    if p_high < p_part.high then
        delete from event e where e.job_id >= p_part.low and e.job_id < p_high
           and not exists (select from unnest(p_kept) k where k = e.job_id);
        return;
    end if;
    perform check_isolation();
    execute format('lock table %I in access exclusive mode', p_part.name);
    if (select count(*) from job_state s where s.id >= p_part.low and s.id < p_high) <> cardinality(p_kept) then
        raise exception 'a job was added to partition % during the purge; it is retried', p_part.name
            using errcode = 'lock_not_available';
    end if;
    execute format('alter table %I disable trigger user', p_part.name);
    execute format('truncate %I', p_part.name);
    execute format('insert into %I select r.* from unnest($1) r', p_part.name) using v_rows;
    execute format('alter table %I enable trigger user', p_part.name);
end $$;

-- An old partition gets no new rows, so the space of deleted rows would never be used again. Once it is mostly empty it is
-- rewritten with the few jobs that stay.
create or replace function compact_partition(p_part event_partition) returns void
language plpgsql set search_path from current set lock_timeout = '500ms' as $$
begin
    if pg_table_size(to_regclass(quote_ident(p_part.name))) > 8 * 1024 * 1024
       and pg_table_size(to_regclass(quote_ident(p_part.name))) > 800 * pg_stat_get_live_tuples(to_regclass(quote_ident(p_part.name))) then
        execute format('cluster %I using %I', p_part.name, (
            select i.indexrelid::regclass::text from pg_index i where i.indrelid = to_regclass(quote_ident(p_part.name)) and i.indisprimary));
    end if;
exception when lock_not_available or deadlock_detected then
    null;   -- retried at the next run
end $$;

-- One step of the purge of a partition: announce it, or execute what was announced. No row: there is nothing to do.
create or replace function purge_partition(p_now timestamptz) returns table (jobs integer, removed integer, held_by text)
language plpgsql set search_path from current set jit = off set enable_seqscan = on set enable_hashjoin = on as $$
declare
    v_part event_partition;
    v_told record;
    v_kept uuid[];
    v_high uuid;
begin
    select p.* into v_part from event_partition p
     where p.check_at <= p_now
       and (p.announced is not null or p.high <= id_since(p_now - span((select min(r.purge_after) from retention r))))
     order by p.announced nulls last, p.low limit 1 for update skip locked;
    if not found then
        return;
    end if;
    jobs := 0;
    removed := 0;
    if not exists (select from job_state s where s.id >= v_part.low and s.id < v_part.high) then
        perform drop_partition(v_part, p_now);
        return;
    end if;
    if v_part.announced is not null then
        select a.changed, array(select k::uuid from jsonb_array_elements_text(a.changed -> 'kept') k) as kept,
               (select s.action_floor >= a.seq and pg_visible_in_snapshot(a.xid::text::xid8, s.snapshot::pg_snapshot)
                  from seal s order by s.number desc limit 1) as sealed
          into v_told from action a where a.seq = v_part.announced;
        if v_told.sealed is not true then
            return;
        end if;
        v_high := (v_told.changed ->> 'below')::uuid;
    else
        -- At most a million jobs in one transaction, which takes some seconds.
        v_high := coalesce((select s.id from job_state s where s.id >= v_part.low and s.id < v_part.high
                             order by s.id offset 1000000 limit 1), v_part.high);
    end if;
    held_by := unread_in(v_part.low, v_high);
    if v_part.announced is null then
        v_kept := case when held_by is null then kept_in(v_part.low, v_high, 1000, p_now) end;
        if cardinality(v_kept) <= 1000 then
            jobs := announce_purge(v_part, v_high, v_kept);
        end if;
        if jobs = 0 then
            perform compact_partition(v_part);
        end if;
        update event_partition p
           set check_at = p_now + case when p.announced is not null then interval '0' when held_by is not null then interval '10 s'
                                       else interval '10 minutes' end
         where p.name = v_part.name;
        return next;
        return;
    end if;
    -- A finished job does not change without an event, and time only makes more of them due.
    if held_by is null and v_told.changed ->> 'policies' = policies_digest()
       and retried_outside(v_part.low, v_high, v_told.kept) = '{}' and not exists (
            select from event e where e.job_id >= v_part.low and e.job_id < v_high
               and e.xid >= (v_told.changed ->> 'xmin')::bigint and not e.job_id = any (v_told.kept)) then
        perform purge_range(v_part.low, v_high, v_told.kept);
        insert into action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)
        select t.key, clock_now(), actor(), 'purge', 'ledger', v_part.name,
               jsonb_build_object('announced', v_part.announced, 'count', t.value -> 0, 'through', t.value -> 2),
               (t.value ->> 1)::bigint, (t.value ->> 2)::bigint
          from jsonb_each(v_told.changed -> 'tenants') t;
        perform empty_partition(v_part, v_high, v_told.kept);
        removed := (v_told.changed ->> 'jobs')::integer;
    else   -- a job has changed: announced again when all may go
        perform note_action('*', 'withdraw', 'ledger', v_part.name, jsonb_build_object('announced', v_part.announced));
    end if;
    update event_partition p set announced = null, check_at = p_now + interval '10 s' where p.name = v_part.name;
    return next;
exception
    when lock_not_available or deadlock_detected then   -- everything above is rolled back
        update event_partition p set check_at = p_now + interval '1 minute' where p.name = v_part.name;
        held_by := 'lock';
        jobs := 0;
        removed := 0;
        return next;
end $$;

-- A partition without jobs is dropped, unless new jobs could still be written to it. This needs an exclusive lock on `event`
-- for a moment, so it waits only briefly: all writers of events queue behind it.
create or replace function drop_partition(p_part event_partition, p_now timestamptz) returns void
language plpgsql set search_path from current set lock_timeout = '100ms' as $$
begin
    execute format('lock table %I in access exclusive mode', p_part.name);
    execute format('drop table %I', p_part.name);
    delete from event_partition p where p.name = p_part.name;
exception when lock_not_available or deadlock_detected then
    update event_partition p set check_at = p_now + interval '1 minute' where p.name = p_part.name;
end $$;

-- A partition is marked as announced only if the announcement exists. Its boundaries never change.
create or replace function guard_partition_row() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_op = 'UPDATE' and ((old.name, old.low, old.high) is distinct from (new.name, new.low, new.high)
           or new.announced is not null and not exists (
                  select from action a where a.seq = new.announced and a.type = 'announce' and a.name = new.name)) then
        raise exception 'event_partition %: its boundaries cannot change, and its purge must be announced first', old.name
            using errcode = 'ZH002';
    elsif tg_op = 'DELETE' and to_regclass(quote_ident(old.name)) is not null then
        raise exception 'event_partition %: the row is deleted when its table is dropped', old.name using errcode = 'ZH002';
    end if;
    return coalesce(new, old);
end $$;
create or replace trigger guard_change before update or delete on event_partition for each row execute function guard_partition_row();

select guard_partition('event_rest');
select guard_partition(p.name) from event_partition p where to_regclass(quote_ident(p.name)) is not null;
select add_partitions(clock_now());
