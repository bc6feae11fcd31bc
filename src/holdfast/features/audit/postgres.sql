-- The bytes that are hashed, who may write the audit trail, and how configuration changes get into it.

-- Encodes a field as its length in bytes, a colon and the value, or a minus for null. Fields encoded like this cannot be
-- confused with each other.
create or replace function audit_field(p_value text) returns text language sql immutable
return coalesce(octet_length(p_value)::text || ':' || p_value, '-');   -- ::text keeps it immutable, and so inlined

-- Digest of an event over all its columns, times in microseconds since 1970. The library computes the same digest
-- independently and verifies with it.
create or replace function event_digest(e event) returns bytea language sql stable
return sha256(convert_to(
    '5:event' || audit_field(e.seq::text) || audit_field(e.job_id::text) || audit_field(e.tenant) || audit_field(e.kind)
    || audit_field(e.type) || audit_field(e.from_state) || audit_field(e.to_state) || audit_field(e.attempt::text)
    || audit_field((extract(epoch from in_time(e.at)) * 1000000)::bigint::text) || audit_field(e.actor) || audit_field(e.meta::text)
    || audit_field(e.xid::text), 'UTF8'));

-- Digest of a job's payload or result, with the number of its enqueue or succeed event, negative if the content is encrypted.
create or replace function content_leaf(p_seq bigint, p_what text, p_job uuid, p_text text, p_pair boolean, p_ref text) returns bytea
language sql stable
return int8send(case when p_text like '{"$holdfast"%' and position('"key"' in p_text) > 0 then -p_seq else p_seq end)
    || sha256(convert_to(audit_field(p_what) || audit_field(p_job::text) || audit_field(p_text)
                         || case when p_pair then audit_field(p_ref) else '' end, 'UTF8'));

create or replace function action_digest(a action) returns bytea language sql stable
return sha256(convert_to(
    '6:action' || audit_field(a.seq::text) || audit_field(a.tenant) || audit_field((extract(epoch from in_time(a.at)) * 1000000)::bigint::text)
    || audit_field(a.actor) || audit_field(a.type) || audit_field(a.subject) || audit_field(a.name)
    || audit_field(a.changed::text) || audit_field(a.first_seq::text) || audit_field(a.last_seq::text)
    || audit_field(a.xid::text), 'UTF8'));

-- An action cannot be written in another actor's name or with another time.
create or replace function guard_action() returns trigger language plpgsql set search_path from current as $$
begin
    if new.actor is distinct from actor() or new.xid <> pg_current_xact_id()::text::bigint + current_base()
       -- An action written by a trigger has the current time, even if the clock is shifted meanwhile, as tests do.
       or pg_trigger_depth() < 2 and abs(extract(epoch from new.at - clock_now())) > 60 then
        raise exception 'action: must be written by its actor at the current time' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on action for each row execute function guard_action();

-- A change of a setting may give maintenance something to do.
create or replace function on_action() returns trigger language plpgsql set search_path from current as $$
begin
    perform announce_upkeep();
    return null;
end $$;
create or replace trigger on_insert after insert on action for each statement execute function on_action();

-- A seal continues the chain. Two concurrent sealers produce one seal.
create or replace function guard_seal() returns trigger language plpgsql set search_path from current as $$
declare v_last record;
begin
    select s.number, s.digest into v_last from seal s order by s.number desc limit 1;
    if new.number <> coalesce(v_last.number, 0) + 1 or new.previous <> coalesce(v_last.digest, repeat('0', 64)) then
        raise exception 'seal %: must continue the newest seal', new.number using errcode = 'ZH059';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on seal for each row execute function guard_seal();

create or replace function note_action(p_tenant text, p_type text, p_subject text, p_name text, p_changed jsonb default null,
                                       p_first bigint default null, p_last bigint default null) returns void
language sql set search_path from current as $$
    insert into action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)
    values (p_tenant, clock_now(), actor(), p_type, p_subject, p_name, p_changed, p_first, p_last);
$$;

-- Trigger function for a configuration row that was inserted, updated or deleted. Its arguments are the name of the subject,
-- the columns that identify it, the columns whose values are recorded, and the columns of which only the fact of a change is
-- recorded. A fifth argument says that operations change these columns all the time: only hand-written statements are recorded,
-- whose context has no function but this one, or a DO block. stores/action_triggers.py lists the tables that have this trigger.
create or replace function record_action() returns trigger language plpgsql security definer set search_path from current as $$
declare
    v_old     jsonb;
    v_new     jsonb;
    v_row     jsonb;
    v_type    text;
    v_changed jsonb;
    v_context text;
    v_scope   text := current_setting('holdfast.tenant', true);
begin
    if tg_nargs > 4 then
        get diagnostics v_context = pg_context;
        if position(e'\n' in v_context) > 0 and position('inline_code_block' in v_context) = 0 then
            return null;   -- before the row is read, which fails if one of its documents is damaged
        end if;
    end if;
    v_old := case when tg_op <> 'INSERT' then to_jsonb(old) end;
    v_new := case when tg_op <> 'DELETE' then to_jsonb(new) end;
    v_row := coalesce(v_new, v_old);
    v_type := case
        when tg_nargs > 4 then 'change'
        when tg_op = 'INSERT' then 'add'
        when tg_op = 'DELETE' then 'remove'
        when (v_old ->> 'disabled_at' is null) <> (v_new ->> 'disabled_at' is null)
            then case when v_new ->> 'disabled_at' is null then 'enable' else 'disable' end
        when (v_old ->> 'paused_at' is null) <> (v_new ->> 'paused_at' is null)
            then case when v_new ->> 'paused_at' is null then 'resume' else 'pause' end
        when v_old ->> 'revoked_at' is null and v_new ->> 'revoked_at' is not null then 'revoke'
        when v_old ->> 'state' <> v_new ->> 'state'
            then case when v_new ->> 'state' = 'paused' then 'pause'
                      when v_new ->> 'state' = 'deleted' then 'remove'
                      when v_old ->> 'state' = 'paused' then 'resume'
                      else 'change' end
        else 'change' end;
    select jsonb_object_agg(c.name, c.says) into v_changed from (
        select n.name,
               case when tg_op <> 'UPDATE' then v_row -> n.name
                    when n.with_value then jsonb_build_array(v_old -> n.name, v_new -> n.name)
                    else '"changed"' end as says
          from (select unnest(string_to_array(tg_argv[2], ' ')) as name, true as with_value
                union all select unnest(string_to_array(tg_argv[3], ' ')), false) n
         where n.name <> '' and (tg_nargs > 4 or n.name not like E'%\\_at')
           and case when tg_op = 'UPDATE' then v_old -> n.name is distinct from v_new -> n.name
                    else n.with_value and v_row ->> n.name is not null end) c;
    if v_row ->> 'tenant' is null then   -- a table with one row, which a session without a tenant may change too
        perform set_config('holdfast.tenant', '*', true);
    end if;
    perform note_action(coalesce(v_row ->> 'tenant', '*'), v_type, tg_argv[0],
        (select string_agg(v_row ->> c.name, ' ' order by c.n)
           from unnest(string_to_array(tg_argv[1], ' ')) with ordinality c (name, n)), v_changed);
    perform set_config('holdfast.tenant', coalesce(v_scope, ''), true);
    return null;
end $$;

-- Trigger function for columns that never change. Its arguments are the name of the subject and the columns.
create or replace function keep_fixed() returns trigger language plpgsql as $$
begin
    raise exception '%: % cannot change', tg_table_name, replace(tg_argv[0], ' ', ', ') using errcode = 'ZH002';
end $$;

-- Seal a block of committed ledger events, hashed together with the previous block. Any worker may seal; there is no leader. If
-- another caller is sealing, this one waits for its block. A lock that is not released within two seconds is an error that
-- names its holder, because an unsealed ledger proves nothing.
--
-- Every event up to `floor` that `snapshot` sees is sealed. New events are those above the floor, and those below it whose
-- transaction the snapshot did not see: an event that commits late goes into a later block and is never left out. One
-- statement reads the events together with the snapshot it uses, so that no event can fall between two blocks (docs/adr/0002,
-- 0020). One plan per connection: planning the digests takes as long as computing a thousand of them, and a custom plan is no
-- better.
create or replace function seal_ledger(version text, want integer default 2000) returns integer
language plpgsql security definer set search_path from current set enable_seqscan = off set jit = off set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan as $$
declare
    v_scope  text := enter('*', 'sealer');
    v_last   seal%rowtype;
    v_new    seal%rowtype;
    v_past   pg_snapshot;
    v_open   bigint[];
    v_above  bigint;
    v_low    bigint;
    v_near   boolean;
begin
    perform check_isolation();
    begin
        lock table lock_seal in exclusive mode;
    exception when lock_not_available then
        raise exception 'the ledger cannot be sealed: %', coalesce((select string_agg(holder_message(h.pid, h.role, h.application), ', ')
                from lock_holders() h where h.locked = 'lock_seal'), 'a transaction') || ' holds its lock'
            using errcode = 'ZH070', hint = 'End that transaction: select pg_terminate_backend(…).';
    end;
    select * into v_last from seal s order by s.number desc limit 1;
    if not found then
        v_last.number := 0;
        v_last.digest := repeat('0', 64);
        v_last.floor := 0;
        v_last.action_floor := 0;
        v_last.base := 0;
    end if;
    v_new.base := v_last.base;
    v_past := v_last.snapshot::pg_snapshot;
    if v_past is not null then
        select array_agg(x::text::bigint) into v_open from pg_snapshot_xip(v_past) x;
        v_above := pg_snapshot_xmax(v_past)::text::bigint;
        -- A transaction in flight at the snapshot took its id after the preceding seals, and its event numbers after that. So
        -- a late event is above the floor of the newest of those seals: nearly always among the last few thousand events,
        -- where the primary key finds it. Only behind a long transaction is the index on xid used, which reads every newer
        -- event.
        select s.floor into v_low from seal s
         where s.xid < pg_snapshot_xmin(v_past)::text::bigint order by s.number desc limit 1;
    end if;
    v_low := greatest(v_low, v_new.base);
    v_near := v_last.floor - v_low < 20000;
    with fresh as (
        (select e.seq, e.type, e.job_id, event_digest(e) as digest from event e
          where e.seq > v_last.floor order by e.seq limit seal_ledger.want)
        union all
        (select e.seq, e.type, e.job_id, event_digest(e) from event e
          where v_near and (e.xid = any (v_open) or e.xid >= v_above) and e.seq <= v_last.floor and e.seq > v_low)
        union all
        (select e.seq, e.type, e.job_id, event_digest(e) from event e
          where not v_near and (e.xid = any (v_open) or e.xid >= v_above) and e.seq + 0 <= v_last.floor and e.seq + 0 > v_low)
    ), brought as (
        select f.seq, content_leaf(f.seq, 'payload', f.job_id, j.payload::text, false, null) as leaf
          from fresh f join job j on j.id = f.job_id where f.type = 'enqueue'
        union all
        select f.seq, content_leaf(f.seq, 'result', f.job_id, r.value::text, true, r.ref)
          from fresh f join result r on r.job_id = f.job_id where f.type = 'succeed'
    ), done as (
        (select a.seq, action_digest(a) as digest from action a
          where a.seq > v_last.action_floor order by a.seq limit seal_ledger.want)
        union all
        (select a.seq, action_digest(a) from action a
          where (a.xid = any (v_open) or a.xid >= v_above) and a.seq + 0 <= v_last.action_floor)
    )
    select coalesce(string_agg(int8send(f.seq) || f.digest, '' order by f.seq), ''), count(*)::integer,
           min(f.seq), max(f.seq), greatest(v_last.floor, max(f.seq)),
           (select coalesce(string_agg(int8send(d.seq) || d.digest, '' order by d.seq), '') from done d),
           (select count(*)::integer from done d), greatest(v_last.action_floor, (select max(d.seq) from done d)),
           ledger_snapshot()::text,
           (select coalesce(string_agg(b.leaf, '' order by b.seq), '') from brought b),
           (count(*) filter (where f.seq > v_last.floor) >= seal_ledger.want)::integer
      into v_new.events, v_new.event_count, v_new.first_seq, v_new.last_seq, v_new.floor,
           v_new.actions, v_new.action_count, v_new.action_floor, v_new.snapshot,
           v_new.contents, v_new.cut
      from fresh f;
    if v_new.event_count + v_new.action_count = 0 then
        return 0;
    end if;
    v_new.number := v_last.number + 1;
    v_new.tenant := '*';
    v_new.previous := v_last.digest;
    v_new.version := seal_ledger.version;
    v_new.xid := pg_current_xact_id()::text::bigint + current_base();
    v_new.sealed_at := clock_now();   -- after the id: a seal with a greater id has a later time
    v_new.digest := encode(sha256(convert_to(
        '4:seal' || audit_field(v_new.number::text) || audit_field(v_new.previous) || audit_field(v_new.event_count::text)
        || audit_field(v_new.action_count::text) || audit_field(v_new.floor::text) || audit_field(v_new.action_floor::text)
        || audit_field(v_new.base::text) || audit_field(v_new.snapshot)
        || audit_field((extract(epoch from v_new.sealed_at) * 1000000)::bigint::text) || audit_field(v_new.version)
        || audit_field(v_new.xid::text), 'UTF8') || v_new.events || v_new.actions
        || convert_to('8:contents' || audit_field((octet_length(v_new.contents) / 40)::text) || audit_field(v_new.cut::text), 'UTF8')
        || v_new.contents), 'hex');
    insert into seal select (v_new).*;
    return v_new.event_count + v_new.action_count;
end $$;

-- Return the seals that contain the events of a job, with the digest each event was sealed with. A tenant may query its own
-- jobs; of a seal it sees only the number and the time.
create or replace function seals_of(job_id uuid, for_tenant text default null)
returns table (seq bigint, seal bigint, sealed_at timestamptz, digest text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(seals_of.for_tenant);
    v_seqs  bigint[];
begin
    select array_agg(e.seq) into v_seqs from event e
     where e.job_id = seals_of.job_id and (v_scope = '*' or e.tenant = v_scope);
    return query
    select n.seq, s.number, s.sealed_at, encode(substr(s.events, p.at + 8, 32), 'hex')
      from unnest(v_seqs) n (seq)
      join seal s on s.last_seq >= n.seq and s.first_seq <= n.seq
     cross join lateral (select sealed_place(s.events, n.seq) as at) p
     where p.at > 0 order by n.seq;
end $$;

-- Position of this number in a block's sorted list of numbers and digests, from 1; 0 if it is not there.
create or replace function sealed_place(p_events bytea, p_seq bigint) returns integer language plpgsql immutable as $$
declare
    v_low  integer := 0;
    v_high integer := octet_length(p_events) / 40 - 1;
    v_mid  integer;
    v_key  bytea := int8send(p_seq);
    v_here bytea;
begin
    while v_low <= v_high loop
        v_mid := (v_low + v_high) / 2;
        v_here := substr(p_events, v_mid * 40 + 1, 8);
        if v_here = v_key then
            return v_mid * 40 + 1;
        elsif v_here < v_key then
            v_low := v_mid + 1;
        else
            v_high := v_mid - 1;
        end if;
    end loop;
    return 0;
end $$;

-- Called by a purge just before it deletes jobs with their events. The action keeps the numbers of the events, so that the
-- chain can be verified without them, and for each job the event that records its cleaning: verification compares that event
-- with its seal. One action per tenant, with the number through which consumers that store their own cursor must have read
-- (`events_gone`). Returns the number of events.
create or replace function record_removed(p_jobs uuid[]) returns integer language plpgsql set search_path from current as $$
declare v_count integer;
begin
    with numbers as (
        select e.tenant, e.seq, e.type, e.job_id, e.seq - row_number() over (partition by e.tenant order by e.seq) as island
          from event e where e.job_id = any (p_jobs)
    ), ranges as (
        select n.tenant, min(n.seq) as low, max(n.seq) as high, count(*) as many,
               max(n.seq) filter (where n.type <> 'clean') as through
          from numbers n group by n.tenant, n.island
    ), noted as (
        select r.tenant, sum(r.many)::integer as many, min(r.low) as low, max(r.high) as high, coalesce(max(r.through), 0) as through,
               string_agg(case when r.low = r.high then r.low::text else r.low || '-' || r.high end, ',' order by r.low) as events
          from ranges r group by r.tenant
    ), cleaned as (
        select e.tenant, count(distinct e.job_id) as jobs, jsonb_object_agg(e.job_id::text, jsonb_build_array(
                   e.seq, e.kind, e.from_state, e.attempt, (extract(epoch from e.at) * 1000000)::bigint, e.actor, e.meta::text, e.xid)) as digests
          from event e where e.job_id = any (p_jobs) and e.type = 'clean' group by e.tenant
    ), written as (
        insert into action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)
        select n.tenant, clock_now(), actor(), 'purge', 'ledger', c.jobs || ' jobs',
               jsonb_build_object('events', n.events, 'count', n.many, 'through', n.through, 'jobs', c.digests), n.low, n.high
          from noted n join cleaned c on c.tenant = n.tenant)
    select sum(n.many)::integer into v_count from noted n;
    return coalesce(v_count, 0);
end $$;

-- Return the payloads of the jobs that these events enqueued, for a verifier that may read every tenant's events but no
-- payloads.
create or replace function enqueued_payloads(numbers bigint[]) returns table (seq bigint, job_id uuid, state text, payload text, replaced text)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter('*');
begin
    return query
    select e.seq, e.job_id, s.state::text, j.payload::text,
           (select r.meta::text from event r where r.job_id = e.job_id and r.type = 'replace' order by r.seq desc limit 1)
      from event e left join job j on j.id = e.job_id left join job_state s on s.id = e.job_id
     where e.type = 'enqueue' and e.seq = any (enqueued_payloads.numbers);
end $$;
