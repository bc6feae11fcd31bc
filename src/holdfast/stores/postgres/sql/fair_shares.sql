-- Fair shares: in a shared queue, tenants with waiting jobs are served in turn, each for as many jobs as its weight; within a
-- tenant, queue order applies. So priorities order a tenant's own jobs and cannot delay another tenant's.
--
-- The index `fair` exists only while a queue is shared, which begins when a second tenant has jobs. A pick goes round the
-- tenants by name, from where the last one stopped (`fair_place`), and visits no more of them than it wants jobs: a pick costs
-- the same with ten tenants as with ten thousand. A worker that finds `fair_place` locked starts from the same place and
-- leaves the row alone; the holder advances it. While only one tenant has jobs, none of this runs.
--
-- Queries name the whole order of `fair`, and may not sort: `by_state` has the tenants in order too, with the rows of all
-- queues, and beside an old transaction with every row that was ever claimed.

create or replace function in_shares(p_queue text, p_fair text[]) returns boolean language sql immutable
return p_queue = any (p_fair) or '*' = any (p_fair) and not '-' || p_queue = any (p_fair);

-- Share all queues once a second tenant has jobs, unless an operator has chosen otherwise. Called when a worker opens a lease
-- for all tenants, and by promote_due: two index reads, and nothing on the path of a job. Building the index blocks writers
-- (half a second for a million rows), so a large table is left to set_fair. It does not wait for open transactions that hold
-- the table, but tries again at the next opportunity.
create or replace function share_when_needed() returns boolean
language plpgsql set search_path from current set lock_timeout = '200ms'
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set enable_bitmapscan = off set jit = off as $$
begin
    if not needs_sharing() then
        return false;
    end if;
    perform from dispatch d where d.fair is null for update skip locked;
    if not found then
        return false;   -- another worker is doing it
    end if;
    if to_regclass('fair') is null then
        create index fair on job_state (queue, tenant, priority desc, position, id) where state = 'queued' and due_at is null;
    end if;
    update dispatch d set fair = '{*}';
    return true;
exception when lock_not_available or deadlock_detected or object_in_use then
    return false;
end $$;

-- Whether share_when_needed has to act now.
create or replace function needs_sharing() returns boolean language plpgsql stable set search_path from current set jit = off
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set enable_bitmapscan = off as $$
declare
    c_most  constant integer := 2000000;   -- rows: about a second
    v_first text;
begin
    if scope() is distinct from '*' or not exists (select from dispatch d where d.fair is null and d.fair_auto)
       or to_regclass('fair') is null and (select c.reltuples > c_most from pg_class c where c.oid = 'job_state'::regclass) then
        return false;
    end if;
    -- From `job`, whose rows are not updated: in `job_state` an old transaction keeps every claimed job's row.
    select j.tenant into v_first from job j order by j.tenant limit 1;
    return exists (select from job j where j.tenant > v_first);
end $$;

create or replace function is_shared(p_queue text, p_fair text[]) returns boolean
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set enable_bitmapscan = off set jit = off as $$
declare v_first text;
begin
    if not in_shares(p_queue, p_fair) then
        return false;
    end if;
    select s.tenant into v_first from job_state s
     where s.queue = p_queue and s.state = 'queued' and s.due_at is null
     order by s.tenant, s.priority desc, s.position, s.id limit 1;
    -- Not EXISTS, which ignores the order.
    return (select s.tenant from job_state s
             where s.queue = p_queue and s.state = 'queued' and s.due_at is null and s.tenant > v_first
             order by s.tenant, s.priority desc, s.position, s.id limit 1) is not null;
end $$;

create or replace function kinds_text(p_kinds text[]) returns text language sql immutable
return coalesce(case when cardinality(p_kinds) > 0 then md5(array_to_string(p_kinds, chr(31))) end, '');

-- Where to continue, and whether this transaction may advance the place.
create or replace function fair_place_of(p_queue text, p_kinds text[], out last text, out left_over integer, out mine boolean)
language plpgsql set search_path from current as $$
begin
    select f.last, f.left_over into last, left_over from fair_place f
     where f.tenant = '*' and f.queue = p_queue and f.kinds = kinds_text(p_kinds) for update skip locked;
    mine := found;
    if not mine then
        select f.last, f.left_over into last, left_over from fair_place f
         where f.tenant = '*' and f.queue = p_queue and f.kinds = kinds_text(p_kinds);
        mine := not found;   -- no row yet: the first pick inserts it (fair_move)
    end if;
    last := coalesce(last, '');
    left_over := coalesce(left_over, 0);
end $$;

-- The next tenants with waiting jobs in a queue, after one name and up to another, and their weights. `reached` is the last of
-- them; null: there are no more.
create or replace function fair_tenants(p_queue text, p_after text, p_upto text, p_most integer, out names text[],
                                        out weights integer[], out reached text)
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set enable_bitmapscan = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
    with recursive walk(tenant, n) as (
        select (select s.tenant from job_state s
                 where s.queue = p_queue and s.state = 'queued' and s.due_at is null and s.tenant > p_after
                 order by s.tenant, s.priority desc, s.position, s.id limit 1), 1
        union all
        select (select s.tenant from job_state s
                 where s.queue = p_queue and s.state = 'queued' and s.due_at is null and s.tenant > w.tenant
                 order by s.tenant, s.priority desc, s.position, s.id limit 1), w.n + 1
          from walk w where w.tenant is not null and w.n < p_most)
    select coalesce(array_agg(w.tenant), '{}'),
           coalesce(array_agg(coalesce((select t.weight from tenant t where t.tenant = w.tenant), 1)), '{}')
      into names, weights
      from walk w where w.tenant is not null and (p_upto is null or w.tenant <= p_upto);
    reached := names[p_most];
end $$;

-- Lock and return the next jobs in a shared queue, tenant by tenant. Repeated calls return the same rows until the place
-- advances.
create or replace function fair_pick(p_queue text, p_last text, p_left integer, p_want integer, p_kinds text[], p_label text, p_barred text[],
                                     p_now timestamptz, out picked tid[], out agented boolean)
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan
    set enable_seqscan = off set enable_sort = off set enable_incremental_sort = off set enable_bitmapscan = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    c_window  constant integer := 16;
    v_next    record;
    v_names   text[];
    v_weights integer[];
    v_quotas  integer[];
    v_able    text[] := '{}';      -- tenants that used all of their share and may have more jobs
    v_each    integer[] := '{}';   -- their weights
    v_rows    tid[];
    v_turns   bigint[];
    v_any     boolean;
    v_after   text := p_last;
    v_upto    text;                -- set once the walk has passed the last name and restarted at the first
    v_round   boolean := false;    -- every tenant has been visited
    v_quantum integer := greatest(1, ceil(p_want / c_window::float8));
begin
    picked := '{}';
    agented := false;
    loop
        if v_round then
            -- Tenants with few jobs leave part of their share; the others divide it.
            exit when v_able = '{}';
            v_names := v_able;
            v_weights := v_each;
            v_able := '{}';
            v_each := '{}';
        else
            v_names := '{}';
            v_weights := '{}';
            while not v_round and cardinality(v_names) < c_window loop
                v_next := fair_tenants(p_queue, v_after, v_upto, c_window - cardinality(v_names));
                v_names := v_names || v_next.names;
                v_weights := v_weights || v_next.weights;
                v_after := v_next.reached;
                if v_after is null then
                    v_round := v_upto is not null or p_last = '';
                    v_after := '';
                    v_upto := p_last;
                end if;
            end loop;
        end if;
        if v_round then
            v_quantum := greatest(1, ceil((p_want - cardinality(picked))::float8
                                          / greatest(1, (select sum(w) from unnest(v_weights) w))));
        end if;
        v_quotas := array(select v_quantum * w from unnest(v_weights) w);
        if p_left > 0 and v_rows is null then
            -- The rest of its last share comes first.
            select array_agg(u.name), array_agg(u.weight), array_agg(u.quota) into v_names, v_weights, v_quotas
              from unnest(v_names, v_weights, v_quotas) u(name, weight, quota) where u.name <> p_last;
            v_names := p_last || v_names;
            v_weights := coalesce((select t.weight from tenant t where t.tenant = p_last), 1) || v_weights;
            v_quotas := p_left || v_quotas;
        end if;
        select coalesce(array_agg(f.ctid), '{}'), array_agg(f.turn), bool_or(f.agented) into v_rows, v_turns, v_any from (
            select p.ctid, p.agented, t.turn from unnest(v_names, v_quotas) with ordinality as t(tenant, quota, turn)
             cross join lateral (
                -- A range of one name instead of an equality, and in the order of `fair`: the index `claimable` also has the
                -- jobs of all tenants in queue order, and the planner would scan it for those of one.
                select s.ctid, s.agent is not null as agented from job_state s
                 where s.queue = p_queue and s.state = 'queued' and s.due_at is null
                   and s.tenant >= t.tenant and s.tenant <= t.tenant
                   and (s.deadline_at is null or s.deadline_at > p_now)
                   and (p_kinds is null or s.kind = any (p_kinds))
                   and (s.executor is null or meets(p_label, s.executor))
                   and (p_barred is null or s.tenant <> all (p_barred))
                   and s.ctid <> all (picked)
                   and not exists (select from quarantine q where q.job_id = s.id and q.until > p_now)
                 order by s.tenant, s.priority desc, s.position, s.id
                 limit t.quota for update skip locked) p
             limit p_want - cardinality(picked)) f;
        picked := picked || v_rows;
        agented := agented or coalesce(v_any, false);
        exit when cardinality(picked) >= p_want;
        select v_able || array_agg(v_names[u.turn]), v_each || array_agg(v_weights[u.turn]) into v_able, v_each from (
            select f.turn from unnest(v_turns) f(turn) group by f.turn having count(*) >= v_quotas[f.turn] order by f.turn) u
         where not v_names[u.turn] = any (v_able);
        v_able := coalesce(v_able, '{}');
        v_each := coalesce(v_each, '{}');
    end loop;
end $$;

-- These rows are about to be claimed: the next pick continues after the last of them.
create or replace function fair_move(p_queue text, p_kinds text[], p_rows tid[], p_last text, p_left integer) returns void
language plpgsql set search_path from current set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_last  text;
    v_had   integer;
    v_quota integer;
begin
    select s.tenant into v_last from job_state s where s.ctid = p_rows[cardinality(p_rows)];
    select count(*) into v_had from job_state s where s.ctid = any (p_rows) and s.tenant = v_last;
    v_quota := coalesce((select t.weight from tenant t where t.tenant = v_last), 1);
    -- The rest of a share that was cut short comes first the next time; more than one weight counts as a full share.
    v_had := case when v_last = p_last and p_left > 0 then v_had + v_quota - p_left else v_had end;
    insert into fair_place as f (queue, kinds, last, left_over)
    values (p_queue, kinds_text(p_kinds), v_last, (v_quota - v_had % v_quota) % v_quota)
    on conflict (tenant, queue, kinds) do update set last = excluded.last, left_over = excluded.left_over;
end $$;
