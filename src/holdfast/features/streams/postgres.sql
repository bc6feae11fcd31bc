-- Output streams of handlers, written in parts while the attempt runs (worker/stream_writer.py).

-- Append parts to the streams of running attempts. `entries`: [{"job", "attempt", "n", "stream", "section", "starts", "count",
-- "chunks"}, …]. A part that starts a new run of its section replaces the parts of earlier runs. Writing a part again changes
-- nothing, so a worker may repeat a call whose response was lost. Returns the jobs whose attempt this lease no longer holds.
create or replace function append_stream(lease uuid, entries json, for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare v_now timestamptz := clock_now();
begin
    perform act_under(append_stream.lease, append_stream.for_tenant);
    return query
    with given as materialized (
        select g.* from json_to_recordset(append_stream.entries) as g(
                   job uuid, attempt integer, n integer, stream text, section integer, starts boolean, count integer, chunks text)
    ), held as materialized (
        select s.id, s.tenant, s.attempt from job_state s
         where s.id = any (array(select g.job from given g)) and s.lease = append_stream.lease and s.state = 'in_progress'
         order by s.id for share
    ), gone as (
        delete from stream_part p using given g join held h on h.id = g.job and h.attempt = g.attempt
         where g.starts and p.job_id = g.job and p.stream = g.stream and p.section = g.section
           and (p.attempt, p.n) < (g.attempt, g.n)
        returning p.job_id, p.stream, p.section
    ), added as (
        insert into stream_part as p (job_id, tenant, attempt, n, stream, section, replaces, count, chunks, at)
        select h.id, h.tenant, h.attempt, g.n, g.stream, g.section,
               g.starts and exists (select from gone d where d.job_id = g.job and d.stream = g.stream and d.section = g.section),
               g.count, g.chunks, v_now
          from given g join held h on h.id = g.job and h.attempt = g.attempt
        on conflict do nothing
    )
    select distinct g.job from given g where not exists (select from held h where h.id = g.job and h.attempt = g.attempt);
    -- Only for readers that wait: commits that notify wait for one another.
    if exists (select from watch) then
        perform notify_listeners(w.job_id::text)
           from (select distinct g.job from json_to_recordset(append_stream.entries) as g(job uuid)) g join watch w on w.job_id = g.job;
    end if;
end $$;

create or replace function guard_stream_part_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from added a
                 left join job_state s on s.id = a.job_id and s.tenant = a.tenant and s.attempt = a.attempt and s.state = 'in_progress'
                where s.id is null) then
        raise exception 'stream_part: written only while the attempt runs' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger guard_insert after insert on stream_part
    referencing new table as added for each statement execute function guard_stream_part_insert();

-- Re-encrypting the same chunks with another key is allowed.
create or replace function guard_stream_part_update() returns trigger language plpgsql set search_path from current as $$
begin
    if (to_jsonb(new) - 'chunks' <> to_jsonb(old) - 'chunks')
       or not (old.chunks like '{"$holdfast":%' and new.chunks like '{"$holdfast":%')
       or not sealed_alike(old.chunks::json, new.chunks::json) then
        raise exception 'stream_part: rows are never changed (update refused)' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on stream_part for each row execute function guard_stream_part_update();
