-- Limits: the maximum number of running jobs and the maximum starts per period, counted by queue, kind, key and so on.
--
-- Limits apply when a job is claimed. `exchange` has picked and locked it; `admit` counts in queue order what its limits allow
-- and parks the rest: parked jobs leave the claim index and name the full limit in `held_by`. A transition that releases a job
-- from its worker frees its slots (record_transition calls free_places for every writer), and as many parked jobs are requeued
-- as fit. Requeueing guarantees nothing: a claim counts again.
--
-- None of this is checked while `dispatch.limited` is false. A claim holds a shared lock on `lock_dispatch` from the start of
-- its exchange; setting a limit takes it exclusively, and so sees every job that was claimed without the limit. No transaction
-- that has locked jobs waits for that lock, so the setter may wait for jobs.

create or replace function stop_dispatch() returns void language plpgsql set search_path from current as $$
begin
    perform check_isolation();
    lock table lock_dispatch in exclusive mode;
end $$;

-- Key of what is counted together, as text: ["default","key","customer-7"].
create or replace function bucket(p_tenant text, p_scope text, p_name text) returns text language sql stable
return concat('[', to_json(p_tenant), ',', to_json(p_scope), ',', to_json(p_name), ']');

-- The row of `mutex` that a transaction locks to count a bucket.
create or replace function bucket_mutex(p_tenant text, p_scope text, p_name text) returns integer language sql stable
return case when p_scope not in ('all', 'queue') then mutex_of(1024, 4096, bucket(p_tenant, p_scope, p_name))
            else mutex_of(256 * ((p_scope = 'queue')::integer + 2 * (p_tenant <> '*')::integer), 256, bucket(p_tenant, p_scope, p_name)) end;

-- The limits that apply to jobs, one row per job and limit. A limit for one name takes precedence over one for every name. A
-- reservation is a limit of zero. Most jobs of a batch are alike, so each lookup is done once for all that are.
create or replace function limits_on(p_rows tid[])
returns table (ord bigint, job_id uuid, bucket text, tenant text, scope text, name text, concurrency integer, rate integer,
               per double precision, burst integer)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_mergejoin = off set jit = off as $$
begin
    return query
    with picked as materialized (
        select r.ord, s.id, s.tenant, s.queue, s.kind, coalesce(s.agent, '') as agent,
               coalesce((select j.uses from job j where j.id = s.id), '{}') as uses
          from unnest(p_rows) with ordinality as r(ctid, ord) join job_state s on s.ctid = r.ctid
    ), live as materialized (
        -- The scopes in which anything is limited or reserved: usually one or two, and only those are searched further.
        select t.tenant as of_tenant, whose.tenant, k.scope
          from (select distinct p.tenant from picked p) t
         cross join lateral (values ('*'), (t.tenant)) whose(tenant)
         cross join (values ('all'), ('queue'), ('kind'), ('tenant'), ('agent'), ('key'), ('resource')) k(scope)
         where exists (select from job_limit l where l.tenant = whose.tenant and l.scope = k.scope)
            or k.scope = 'resource' and exists (select from reservation r
                   where r.tenant = whose.tenant and r.scope = 'resource' and r.state = 'active')
    ), alike as materialized (
        select distinct p.tenant, p.queue, p.kind, p.agent, p.uses from picked p
    ), ruled as materialized (
        select a.queue, a.kind, a.agent, a.uses, a.tenant as of_tenant, bucket(x.tenant, v.scope, w.name) as bucket,
               x.tenant, v.scope, w.name, x.concurrency, x.rate, x.per, x.burst
          from alike a
          join live v on v.of_tenant = a.tenant
         cross join lateral (
            select case v.scope when 'all' then '*' when 'queue' then a.queue when 'kind' then a.kind
                                when 'tenant' then a.tenant when 'agent' then nullif(a.agent, '') end
             where v.scope not in ('key', 'resource')
            union all
            select substr(u, strpos(u, ':') + 1) from unnest(a.uses) u
             where v.scope in ('key', 'resource') and split_part(u, ':', 1) = v.scope) w(name)
         cross join lateral (
            (select l.tenant, l.concurrency, l.rate, l.per, l.burst from job_limit l
              where l.tenant = v.tenant and l.scope = v.scope and l.name in (w.name, '*')
              order by l.name = '*' limit 1)
            union all
            select r.tenant, 0, null, null, null from reservation r
             where v.scope = 'resource' and r.tenant = v.tenant and r.scope = 'resource' and r.name = w.name
               and r.state = 'active' and r.expires_at > clock_now()) x
         where w.name is not null
    )
    select p.ord, p.id, r.bucket, r.tenant, r.scope, r.name, r.concurrency, r.rate, r.per, r.burst
      from picked p join ruled r on r.of_tenant = p.tenant and r.queue = p.queue and r.kind = p.kind and r.agent = p.agent
       and r.uses = p.uses;
end $$;

-- Current content of a token bucket. On top of `burst` it keeps the tokens of a tenth of a second: a worker arrives a few
-- milliseconds after a token does, and the tokens that came in meanwhile would be lost each time.
create or replace function tokens_now(p_tokens double precision, p_at timestamptz, p_rate integer, p_per double precision,
                                      p_burst integer, p_now timestamptz) returns double precision language sql immutable
return least(p_burst + 0.1 * p_rate / p_per, coalesce(p_tokens + greatest(extract(epoch from p_now - p_at)::float8, 0) * p_rate / p_per, p_burst));

-- How many more jobs may be claimed; null without a limit.
create or replace function room_in(p_tenant text, p_scope text, p_name text, p_concurrency integer, p_rate integer,
                                   p_per double precision, p_burst integer, p_now timestamptz) returns integer
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_room   integer;
    v_tokens double precision;
begin
    if p_concurrency is not null then
        v_room := greatest(p_concurrency - (select count(*) from occupied_slot p
            where p.tenant = p_tenant and p.scope = p_scope and p.name = p_name), 0);
    end if;
    if p_rate is not null then
        v_tokens := tokens_now((select m.tokens from rate_meter m where m.tenant = p_tenant and m.scope = p_scope and m.name = p_name),
                               (select m.at from rate_meter m where m.tenant = p_tenant and m.scope = p_scope and m.name = p_name),
                               p_rate, p_per, p_burst, p_now);
        v_room := least(v_room, floor(v_tokens + 1e-9)::integer);
    end if;
    return v_room;
end $$;

-- How many jobs a whole queue may start in this scope, however many wait in it: then no job has to be parked. Null: no limit
-- for the queue as a whole. Locks are taken in the order all before queue, every tenant's before one tenant's, both before the
-- rest; for a second queue of the same exchange they are only tried.
create or replace function room_for_queue(p_queue text, p_scope text, p_now timestamptz, p_wait boolean) returns integer
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_whose text := p_scope;
    v_limit record;
    v_room  integer;
begin
    if p_scope = '*' then
        -- With only one tenant, its limits are those of all.
        select j.tenant into v_whose from job j order by j.tenant limit 1;
        if v_whose is distinct from (select j.tenant from job j order by j.tenant desc limit 1) then
            v_whose := '*';
        end if;
    end if;
    for v_limit in
        select l.tenant, l.scope, w.name, l.concurrency, l.rate, l.per, l.burst
          from (values ('*', 'all', '*', 1), ('*', 'queue', p_queue, 2),
                       (nullif(v_whose, '*'), 'all', '*', 3), (nullif(v_whose, '*'), 'queue', p_queue, 4)) w(tenant, scope, name, n)
         cross join lateral (select * from job_limit l where l.tenant = w.tenant and l.scope = w.scope
                                and l.name in (w.name, '*') order by l.name = '*' limit 1) l
         order by w.n
    loop
        if p_wait then
            perform lock_mutex(bucket_mutex(v_limit.tenant, v_limit.scope, v_limit.name));
        else
            perform from mutex m where m.n = bucket_mutex(v_limit.tenant, v_limit.scope, v_limit.name) for update skip locked;
            if not found then
                return 0;
            end if;
        end if;
        v_room := least(v_room, room_in(v_limit.tenant, v_limit.scope, v_limit.name, v_limit.concurrency, v_limit.rate,
                                        v_limit.per, v_limit.burst, p_now));
        if v_room <= 0 and v_limit.rate is not null then
            perform wake_later(v_limit.tenant, v_limit.scope, v_limit.name, v_limit.rate, v_limit.per, v_limit.burst, p_now);
        end if;
        exit when v_room <= 0;
    end loop;
    return v_room;
end $$;

-- Jobs wait for the next token: record when it comes in, which is when a worker claims again. `p_promised` tokens are for jobs
-- that have already been requeued. The time is slightly later than computed: times are rounded, and no worker would return for
-- the remainder.
create or replace function wake_later(p_tenant text, p_scope text, p_name text, p_rate integer, p_per double precision,
                                      p_burst integer, p_now timestamptz, p_promised integer default 0) returns void
language plpgsql set search_path from current as $$
begin
    update rate_meter m set wake_at = p_now + make_interval(secs => 0.0001 +
               greatest(1 + p_promised - tokens_now(m.tokens, m.at, p_rate, p_per, p_burst, p_now), 0) * p_per / p_rate),
           -- In the future: the clock was set back. Tokens come in from now on.
           at = case when m.at > p_now + interval '5 s' then p_now else m.at end
     where m.tenant = p_tenant and m.scope = p_scope and m.name = p_name
       and (m.wake_at is null or m.wake_at <= p_now or m.at > p_now + interval '5 s');
end $$;

-- The capacity of a whole queue is used up, and more jobs may wait in it: record when there is capacity again.
create or replace function wake_queue_later(p_queue text, p_now timestamptz) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
begin
    perform wake_later(m.tenant, m.scope, m.name, l.rate, l.per, l.burst, p_now)
       from rate_meter m
      cross join lateral (select * from job_limit l where l.tenant = m.tenant and l.scope = m.scope
                             and l.name in (m.name, '*') order by l.name = '*' limit 1) l
      where (m.scope, m.name) in (('all', '*'), ('queue', p_queue)) and l.rate is not null
        and tokens_now(m.tokens, m.at, l.rate, l.per, l.burst, p_now) < 1;
end $$;

-- Seconds until the next token that jobs wait for; null if none do.
create or replace function next_token_in(p_now timestamptz) returns double precision
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
begin
    return (select greatest(extract(epoch from m.wake_at - p_now), 0) from rate_meter m
             where m.wake_at is not null order by m.wake_at limit 1);
end $$;

-- What is left of a limit, by count and by tokens; null without either.
create or replace function limit_room(p_tenant text, p_scope text, p_name text, p_concurrency integer, p_rate integer,
                                      p_per double precision, p_burst integer, p_now timestamptz) returns integer
language sql stable
begin atomic
    select least(
        p_concurrency - (select count(*) from occupied_slot p where p.tenant = p_tenant and p.scope = p_scope and p.name = p_name),
        (select floor(tokens_now(max(m.tokens), max(m.at), p_rate, p_per, p_burst, p_now) + 1e-9)
           from rate_meter m where m.tenant = p_tenant and m.scope = p_scope and m.name = p_name
         having p_rate is not null))::integer;
end;

create or replace function take_tokens(p_tenant text, p_scope text, p_name text, p_rate integer, p_per double precision,
                                       p_burst integer, p_taken integer, p_now timestamptz) returns void language plpgsql as $$
begin
    insert into rate_meter as m (tenant, scope, name, tokens, at)
    select p_tenant, p_scope, p_name, tokens_now(k.tokens, k.at, p_rate, p_per, p_burst, p_now) - p_taken, p_now
      from (values (1)) one left join rate_meter k on k.tenant = p_tenant and k.scope = p_scope and k.name = p_name
    on conflict (tenant, scope, name) do update set tokens = excluded.tokens, at = excluded.at;
end $$;

-- Lock limits, each once, in ascending order. Returns the buckets that another transaction is counting, if this exchange must
-- not wait.
create or replace function lock_limits(p_buckets text[], p_limits limited[], p_wait boolean) returns text[]
language plpgsql as $$
declare
    v_rows integer[];
    v_got  integer[];
begin
    select array_agg(distinct bucket_mutex(u.tenant, u.scope, u.name)) into v_rows
      from unnest(p_limits) u(tenant, scope, name, concurrency, rate, per, burst);
    if p_wait then
        select array_agg(g.n) into v_got from (
            select m.n from mutex m where m.n = any (v_rows) order by m.n for update) g;
        if cardinality(v_got) is distinct from cardinality(v_rows) then
            perform lock_mutex(n) from unnest(v_rows) n;   -- the error names the missing row
        end if;
        return null;
    end if;
    select array_agg(g.n) into v_got from (
        select m.n from mutex m where m.n = any (v_rows) order by m.n for update skip locked) g;
    return (select array_agg(distinct u.bucket)
              from unnest(p_buckets, p_limits) u(bucket, tenant, scope, name, concurrency, rate, per, burst)
             where not bucket_mutex(u.tenant, u.scope, u.name) = any (coalesce(v_got, '{}')));
end $$;

-- Jobs of a few sorts, and enough capacity for all of them: nearly always the case with wide limits. Then lookups and counts
-- are done per sort, not per job. False: this is not the case, and nothing was claimed.
create or replace function admit_alike(p_rows tid[], p_now timestamptz, p_wait boolean) returns boolean language plpgsql as $$
declare
    v_sorts   alike[];
    v_ords    bigint[];
    v_buckets text[];
    v_limits  limited[];
begin
    if exists (select from job_limit l where l.scope in ('key', 'resource'))
       or exists (select from reservation r where r.scope = 'resource' and r.state = 'active') then
        return false;   -- each job may be of its own sort
    end if;
    select array_agg(row(g.sample, g.jobs)::alike) into v_sorts from (
        select (array_agg(r.ctid))[1] as sample, array_agg(s.id) as jobs
          from unnest(p_rows) r(ctid) join job_state s on s.ctid = r.ctid
         group by s.tenant, s.queue, s.kind, s.agent) g;
    if cardinality(v_sorts) > 8 then
        return false;
    end if;
    select array_agg(l.ord), array_agg(l.bucket),
           array_agg(row(l.tenant, l.scope, l.name, l.concurrency, l.rate, l.per, l.burst)::limited)
      into v_ords, v_buckets, v_limits from limits_on(array(select a.sample from unnest(v_sorts) a)) l;
    if v_ords is null then
        return true;
    end if;
    if lock_limits(v_buckets, v_limits, p_wait) is not null then
        return false;
    end if;
    -- A separate statement: its snapshot shows what the previous holders of the locks wrote.
    if not (select bool_and(r.room >= r.times) from (
        select sum(cardinality(v_sorts[u.ord].jobs)) as times, limit_room(u.tenant, u.scope, u.name, min(u.concurrency),
               max(u.rate), max(u.per), max(u.burst), p_now) as room
          from unnest(v_ords, v_limits) u(ord, tenant, scope, name, concurrency, rate, per, burst)
         group by u.tenant, u.scope, u.name) r) then
        return false;
    end if;
    insert into occupied_slot (tenant, scope, name, job_id)
    select u.tenant, u.scope, u.name, j.id
      from unnest(v_ords, v_limits) u(ord, tenant, scope, name, concurrency, rate, per, burst),
           unnest(v_sorts[u.ord].jobs) as j(id)
     where u.concurrency is not null;   -- a job that is about to be claimed has no slot: checking costs more than inserting
    perform take_tokens(u.tenant, u.scope, u.name, u.rate, u.per, u.burst, sum(cardinality(v_sorts[u.ord].jobs))::integer, p_now)
       from unnest(v_ords, v_limits) u(ord, tenant, scope, name, concurrency, rate, per, burst)
      where u.rate is not null group by u.tenant, u.scope, u.name, u.rate, u.per, u.burst;
    return true;
end $$;

-- Of the rows that an exchange has picked and locked, in queue order, return those that their limits allow, up to a maximum;
-- their slots and tokens are taken. Jobs over a limit are parked, except under a limit that another transaction is counting
-- while this exchange must not wait.
create or replace function admit(p_rows tid[], p_now timestamptz, p_wait boolean, p_most integer) returns tid[]
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_hashjoin = on set enable_mergejoin = off set enable_seqscan = on set jit = off as $$
declare
    v_ords    bigint[];
    v_jobs    uuid[];
    v_buckets text[];
    v_limits  limited[];
    v_rooms   jsonb := '{}';
    v_fits    boolean := true;
    v_not_got text[];
    v_row     record;
    v_put_off bigint[] := '{}';   -- their ordinals
    v_by      text[] := '{}';
    v_busy    bigint[] := '{}';
    v_taken   integer := 0;
    v_room    integer;
    v_full    text;
begin
    if cardinality(p_rows) <= p_most and admit_alike(p_rows, p_now, p_wait) then
        return p_rows;
    end if;
    select array_agg(l.ord), array_agg(l.job_id), array_agg(l.bucket),
           array_agg(row(l.tenant, l.scope, l.name, l.concurrency, l.rate, l.per, l.burst)::limited)
      into v_ords, v_jobs, v_buckets, v_limits from limits_on(p_rows) l;
    if v_ords is null then
        return p_rows[:p_most];
    end if;
    v_not_got := lock_limits(v_buckets, v_limits, p_wait);
    v_fits := v_not_got is null;
    -- A separate statement: its snapshot shows what the previous holders of the locks wrote. Where something is both limited
    -- and reserved, the reservation counts.
    select jsonb_object_agg(r.bucket, case when r.bucket = any (v_not_got) then -1 else r.room end),
           v_fits and bool_and(r.room >= r.times) into v_rooms, v_fits from (
        select u.bucket, count(*) as times, limit_room(u.tenant, u.scope, u.name, min(u.concurrency), max(u.rate), max(u.per),
                                                       max(u.burst), p_now) as room
          from unnest(v_buckets, v_limits) u(bucket, tenant, scope, name, concurrency, rate, per, burst)
         group by u.bucket, u.tenant, u.scope, u.name) r;
    if v_not_got is null and cardinality(v_ords) = cardinality(p_rows) and v_rooms - v_buckets[1] = '{}' then
        -- All jobs are under the same single limit, as with a backlog of one kind: the first ones fit, the others do not.
        v_room := greatest((v_rooms ->> v_buckets[1])::integer, 0);
        v_taken := least(v_room, p_most, cardinality(p_rows));
        if v_room < p_most then
            v_put_off := array(select generate_series(v_taken + 1, cardinality(p_rows))::bigint);
            v_by := array_fill(v_buckets[1], array[cardinality(v_put_off)]);
        else
            v_busy := array(select generate_series(v_taken + 1, cardinality(p_rows))::bigint);   -- more than wanted
        end if;
    elsif not v_fits or cardinality(p_rows) > p_most then
        for v_row in
            select r.ord, array_agg(u.bucket) filter (where u.bucket is not null) as buckets
              from generate_series(1, cardinality(p_rows)) r(ord) left join unnest(v_ords, v_buckets) u(ord, bucket) on u.ord = r.ord
             group by r.ord order by r.ord
        loop
            if v_taken >= p_most then
                v_busy := v_busy || v_row.ord::bigint;   -- more than wanted
                continue;
            end if;
            select b into v_full from unnest(v_row.buckets) b where (v_rooms ->> b)::integer <= 0
             order by (v_rooms ->> b)::integer = -1 desc limit 1;
            if v_full is null then
                v_taken := v_taken + 1;
                select v_rooms || coalesce(jsonb_object_agg(b, (v_rooms ->> b)::integer - 1), '{}') into v_rooms from unnest(v_row.buckets) b;
            elsif v_full = any (v_not_got) then
                v_busy := v_busy || v_row.ord;
            else
                v_put_off := v_put_off || v_row.ord;
                v_by := v_by || v_full;
            end if;
        end loop;
    end if;

    insert into occupied_slot (tenant, scope, name, job_id)
    select distinct u.tenant, u.scope, u.name, u.job_id
      from unnest(v_ords, v_jobs, v_limits) u(ord, job_id, tenant, scope, name, concurrency, rate, per, burst)
     where u.concurrency is not null and not u.ord = any (v_put_off) and not u.ord = any (v_busy)
    on conflict do nothing;
    perform take_tokens(u.tenant, u.scope, u.name, u.rate, u.per, u.burst, count(distinct u.ord)::integer, p_now)
       from unnest(v_ords, v_limits) u(ord, tenant, scope, name, concurrency, rate, per, burst)
      where u.rate is not null and not u.ord = any (v_put_off) and not u.ord = any (v_busy)
      group by u.tenant, u.scope, u.name, u.rate, u.per, u.burst;

    if v_put_off <> '{}' then
        update job_state s set due_at = 'infinity', note = jsonb_build_object('held', 'limit', 'by', o.by), held_by = o.by
          from unnest(v_put_off, v_by) o(ord, by) where s.ctid = p_rows[o.ord];
        perform wake_later(l.tenant, l.scope, l.name, l.rate, l.per, l.burst, p_now)
           from (select distinct u.tenant, u.scope, u.name, u.rate, u.per, u.burst
                   from unnest(v_buckets, v_limits) u(bucket, tenant, scope, name, concurrency, rate, per, burst)
                  where u.bucket = any (v_by) and u.rate is not null) l;
    end if;
    if v_put_off = '{}' and v_busy = '{}' then
        return p_rows;
    end if;
    return array(select r.ctid from unnest(p_rows) with ordinality r(ctid, ord)
                  where not r.ord = any (v_put_off) and not r.ord = any (v_busy) order by r.ord);
end $$;

-- Return whether everything of every tenant is paused: then maintenance tasks do nothing either.
create or replace function halted() returns boolean
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
begin
    return exists (select from pause w where w.tenant = '*' and w.scope = 'all' and w.name = '*'
                      and (w.until is null or w.until > clock_now()));
end $$;

-- Whether this bucket is paused as a whole.
create or replace function paused(p_tenant text, p_scope text, p_name text, p_now timestamptz) returns boolean
language plpgsql stable set search_path from current set enable_seqscan = off set jit = off as $$
begin
    return exists (select from pause w where w.tenant = p_tenant and w.scope = p_scope and w.name = p_name
                      and (w.until is null or w.until > p_now));
end $$;

-- Requeue as many jobs as these limits have capacity for, each in queue order. Returns how many.
create or replace function unpark_all(p_tenants text[], p_scopes text[], p_names text[], p_now timestamptz, p_want integer default 1000)
returns integer language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
    v_jobs   uuid[];
    v_queues text[];
    v_count  integer := 0;
begin
    select array_agg(k.id) into v_jobs from (
        -- Checked once per limit, not once per job: a million of them may be paused.
        select n.id from (select * from unnest(p_tenants, p_scopes, p_names) u(tenant, scope, name)
                           where not closed(u.tenant, u.scope, u.name, p_now) offset 0) u
         cross join lateral (
            select s.id from job_state s
             where s.held_by = bucket(u.tenant, u.scope, u.name) and s.held_by is not null and s.due_at is not null
               and s.state = 'queued'
             order by s.priority desc, s.position, s.id
             limit least(p_want, coalesce((
                select greatest(room_in(u.tenant, u.scope, u.name, l.concurrency, l.rate, l.per, l.burst, p_now), 0)
                  from job_limit l where l.tenant = u.tenant and l.scope = u.scope and l.name in (u.name, '*')
                 order by l.name = '*' limit 1), p_want))
               for update skip locked) n
         limit p_want) k;
    if v_jobs is not null then
        with freed as (
            update job_state s set due_at = null, note = null, held_by = null where s.id = any (v_jobs) returning s.queue
        )
        select count(*), array_agg(distinct queue) into v_count, v_queues from freed;
        -- With a space: the jobs keep their positions, which may be ahead of the position that a worker searches from.
        perform notify_listeners(' ' || q) from unnest(v_queues) q;
    end if;
    -- No job is parked where a whole queue is limited, and the workers that poll it are asleep.
    perform notify_listeners(w.queue) from (
        select distinct case u.scope when 'queue' then u.name else '' end as queue
          from unnest(p_tenants, p_scopes, p_names) u(tenant, scope, name) where u.scope in ('all', 'queue')) w;
    return v_count;
end $$;

create or replace function unpark(p_tenant text, p_scope text, p_name text, p_now timestamptz, p_want integer default 1000)
returns integer language sql set search_path from current
return unpark_all(array[p_tenant], array[p_scope], array[p_name], p_now, p_want);

-- Whether it is reserved or paused.
create or replace function closed(p_tenant text, p_scope text, p_name text, p_now timestamptz) returns boolean
language plpgsql stable set search_path from current as $$
begin
    return p_scope = 'resource' and exists (select from reservation r where r.tenant = p_tenant and r.scope = 'resource'
               and r.name = p_name and r.state = 'active' and r.expires_at > p_now)
        or paused(p_tenant, p_scope, p_name, p_now);
end $$;

-- These jobs have been released by their workers.
create or replace function free_places(p_jobs uuid[]) returns void language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_tenants text[];
    v_scopes  text[];
    v_names   text[];
begin
    with freed as (delete from occupied_slot p where p.job_id = any (p_jobs) returning p.tenant, p.scope, p.name),
    once as (select distinct f.tenant, f.scope, f.name from freed f)
    select array_agg(o.tenant), array_agg(o.scope), array_agg(o.name) into v_tenants, v_scopes, v_names from once o
     where o.scope in ('all', 'queue')   -- and was full: a worker may be asleep. (The slots being freed still count here.)
           and (select count(*) from occupied_slot p where p.tenant = o.tenant and p.scope = o.scope and p.name = o.name)
               >= (select l.concurrency from job_limit l where l.tenant = o.tenant and l.scope = o.scope
                      and l.name in (o.name, '*') order by l.name = '*' limit 1)
        or exists (select from job_state s where s.held_by = bucket(o.tenant, o.scope, o.name) and s.held_by is not null
                      and s.due_at is not null and s.state = 'queued');
    if v_tenants is not null then
        perform unpark_all(v_tenants, v_scopes, v_names, clock_now());
    end if;
end $$;
