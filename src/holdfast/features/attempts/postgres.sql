-- Log of an attempt. It is written in parts while the attempt runs and never changed; after the attempt has ended, the
-- database refuses further parts.

-- Append log parts to running attempts. `entries`: [{"job", "attempt", "n", "lines"}, …], or with a "ref" instead of lines.
-- Writing a part again changes nothing, so a worker may repeat a call whose response was lost. Returns the jobs whose attempt
-- this lease no longer holds; nothing was written for them.
create or replace function append_log(lease uuid, entries json, for_tenant text default null) returns setof uuid
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set jit = off as $$
declare v_now timestamptz := clock_now();
begin
    perform act_under(append_log.lease, append_log.for_tenant);
    return query
    with given as materialized (
        select g.* from json_to_recordset(append_log.entries) as g(job uuid, attempt integer, n integer, lines text, ref text)
    ), held as materialized (
        select s.id, s.tenant, s.attempt from job_state s
         where s.id = any (array(select g.job from given g)) and s.lease = append_log.lease and s.state = 'in_progress'
         order by s.id for share
    ), added as (
        insert into attempt_log (job_id, tenant, attempt, n, at, lines, ref)
        select h.id, h.tenant, h.attempt, g.n, v_now, g.lines, g.ref from given g join held h on h.id = g.job and h.attempt = g.attempt
        on conflict do nothing
    )
    select distinct g.job from given g where not exists (select from held h where h.id = g.job and h.attempt = g.attempt);
end $$;

create or replace function guard_attempt_log_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from added a
                 left join job_state s on s.id = a.job_id and s.tenant = a.tenant and s.attempt = a.attempt and s.state = 'in_progress'
                where s.id is null) then
        raise exception 'attempt_log: written only while the attempt runs' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger guard_insert after insert on attempt_log
    referencing new table as added for each statement execute function guard_attempt_log_insert();

-- Re-encrypting the same lines with another key is allowed.
create or replace function guard_attempt_log_update() returns trigger language plpgsql set search_path from current as $$
begin
    if (to_jsonb(new) - 'lines' <> to_jsonb(old) - 'lines')
       or not (old.lines like '{"$holdfast":%' and new.lines like '{"$holdfast":%')
       or not sealed_alike(old.lines::json, new.lines::json) then
        raise exception 'attempt_log: rows are never changed (update refused)' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on attempt_log for each row execute function guard_attempt_log_update();
