-- Reading by function, for callers that bind no tenant to their transaction themselves.
create or replace function get_job(job uuid, for_tenant text default null) returns setof jobs
language plpgsql set search_path from current as $$
declare v_scope text := enter(for_tenant);
begin return query select j.* from jobs j where j.id = get_job.job and (v_scope = '*' or j.tenant = v_scope); end $$;

create or replace function list_jobs(in_state state default null, of_kind text default null, before uuid default null,
                                     want integer default 50, for_tenant text default null) returns setof jobs
language plpgsql set search_path from current as $$
declare v_scope text := enter(for_tenant);
begin
    return query select j.* from jobs j
     where (v_scope = '*' or j.tenant = v_scope) and (in_state is null or j.state = in_state)
       and (of_kind is null or j.kind = of_kind) and (before is null or j.id < before)
     order by j.id desc limit list_jobs.want;
end $$;

create or replace function history(job uuid, for_tenant text default null)
returns table (seq bigint, at timestamptz, verb text, from_state state, to_state state, attempt integer, actor text, meta jsonb)
language plpgsql set search_path from current as $$
declare v_scope text := enter(for_tenant);
begin
    return query select e.seq, e.at, e.verb, e.from_state, e.to_state, e.attempt, e.actor, e.meta from event e
     where e.job_id = history.job and (v_scope = '*' or e.tenant = v_scope) order by e.seq;
end $$;

-- How the work stands, for other languages: each number is counted up to ten thousand, so that a look costs no more the
-- more there is. The verdict with its reasons is the command line's and Python's.
create or replace function health(for_tenant text default null) returns jsonb
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(for_tenant);
    v_now   timestamptz := clock_now();
    v_cap   constant integer := 10000;
begin
    return jsonb_build_object(
        'backlog', (select count(*) from (select from job_state s
                     where s.state = 'queued' and s.due_at is null and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'in_progress', (select count(*) from (select from job_state s
                     where s.state in ('leased', 'in_progress') and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'dead_letter_open', (select count(*) from (select from job_state s where s.state = 'dead_letter'
                     and s.state not in ('leased', 'in_progress') and (v_scope = '*' or s.tenant = v_scope) limit v_cap) c),
        'oldest_queued_age_s', (select extract(epoch from v_now - min(
                         -- A job that has run before waits since it came back, not since it was made.
                         case when s.attempt = 0 then greatest(j.created_at, j.process_after)
                              else (select e.at from event e where e.job_id = s.id order by e.seq desc limit 1) end))::float8
                     from (select s.id, s.attempt from job_state s
                            where s.state = 'queued' and s.due_at is null and (v_scope = '*' or s.tenant = v_scope)
                            limit v_cap) s join job j on j.id = s.id),
        'lease_active', (select count(*) from lease l where l.ended_at is null and l.until > v_now
                     and (v_scope = '*' or l.tenant in (v_scope, '*'))),
        'gate_open', (select count(*) from (select from gate g
                     where g.state = 'open' and (v_scope = '*' or g.tenant = v_scope) limit v_cap) c),
        'oldest_gate_age_s', (select extract(epoch from v_now - min(g.opened_at))::float8
                     from gate g where g.state = 'open' and (v_scope = '*' or g.tenant = v_scope)),
        'paused', coalesce((select jsonb_agg(switch_says(w) order by w.scope, w.name, w.tenant) from switch w
                     where (w.until is null or w.until > v_now) and (v_scope = '*' or w.tenant in (v_scope, '*'))), '[]'));
end $$;
