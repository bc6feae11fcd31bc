-- Rules for payloads, applied to every insert into `job`. Checked only while `dispatch.ruled` is true.

-- All rules for a kind in a tenant combined: for each setting the strictest; of approvals that of an operator before those of
-- programs, then the most specific. Null if there is no rule, or none that the database can check.
create or replace function rule_for(p_tenant text, p_kind text) returns payload_rule
language plpgsql stable set search_path from current as $$
declare v_rule payload_rule;
begin
    select p_tenant, p_kind, '', bool_or(r.signal_only),
           (select array_agg(distinct f) from payload_rule s, unnest(s.forbidden) f
             where s.tenant in (p_tenant, '*') and s.kind in (p_kind, '*') and s.signal_only),
           case when bool_or(r.classification = 'restricted') then 'restricted' else 'safe_metadata' end,
           min(r.max_bytes), min(r.max_result_bytes), bool_and(r.store),
           bool_or(r.replaceable) and bool_and(coalesce(r.replaceable, true)),
           (array_agg(r.requires_approval order by r.declared_by <> '', r.tenant = '*', r.kind = '*', r.declared_by collate "C")
              filter (where r.requires_approval is not null))[1],
           bool_or(r.token_only), bool_or(r.at_most_once), '', null, null
      into v_rule
      from payload_rule r where r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*') having count(*) > 0;
    return v_rule;
end $$;

-- Path of the first of these keys, at any depth and in arrays, ignoring case: '$.items[3].password'. Payloads are stored as
-- sent, so a duplicate key is checked twice. The text is searched first, which is nearly always enough; a key can hide from
-- that only behind a \u escape.
create or replace function forbidden_at(p_payload json, p_forbidden text[]) returns text
language plpgsql immutable set search_path from current as $$
declare v_text text := lower(p_payload::text);
begin
    if position(E'\\u' in v_text) = 0
       and not exists (select from unnest(p_forbidden) f where position('"' || f || '"' in v_text) > 0) then
        return null;
    end if;
    return (
        with recursive walk(path, key, value) as (
            select '$', null::text, p_payload
            union all
            select w.path || case when e.n is not null then '[' || e.n || ']'
                                  when e.key ~ '^[A-Za-z_][A-Za-z0-9_]{0,59}$' then '.' || e.key
                                  else '[' || left(to_json(e.key)::text, 60) || ']' end,
                   e.key, e.value
              from walk w cross join lateral (
                   select k.key, k.value, null::bigint as n
                     from json_each(case when json_typeof(w.value) = 'object' then w.value end) k
                   union all
                   select null, i.value, i.n - 1
                     from json_array_elements(case when json_typeof(w.value) = 'array' then w.value end) with ordinality as i(value, n)) e
        )
        select w.path from walk w where lower(w.key) = any (p_forbidden) limit 1);
end $$;

create or replace function guard_payload(p_rule payload_rule, p_kind text, p_payload json) returns void
language plpgsql set search_path from current as $$
declare v_path text;
begin
    if octet_length(p_payload::text) > p_rule.max_bytes then
        raise exception 'the payload of % has % bytes; its rule allows %', p_kind, octet_length(p_payload::text), p_rule.max_bytes
            using errcode = 'ZH051', hint = 'Pass a reference, or change the rule to store larger payloads.';
    end if;
    if p_rule.signal_only then
        v_path := forbidden_at(p_payload, p_rule.forbidden);
        if v_path is not null then
            raise exception 'the payload of % has a forbidden key at %: this kind is signal-only', p_kind, v_path
                using errcode = 'ZH050', hint = 'Store the data elsewhere and pass a reference: source_ref.';
        end if;
    end if;
end $$;

-- Check the payloads of new jobs against the rules. A retry was accepted with its first attempt. Called by on_job_insert.
create or replace function payloads_on_insert(p_jobs uuid[]) returns void
language plpgsql set search_path from current set enable_seqscan = off set jit = off as $$
declare
    v_row  record;
    v_rule payload_rule;
begin
    for v_row in select distinct j.tenant, j.kind from job j where j.id = any (p_jobs) and j.retry_of is null order by 1, 2 loop
        v_rule := rule_for(v_row.tenant, v_row.kind);
        continue when v_rule.kind is null;
        perform guard_payload(v_rule, j.kind, j.payload) from job j
          where j.id = any (p_jobs) and j.tenant = v_row.tenant and j.kind = v_row.kind and j.retry_of is null;
    end loop;
end $$;

-- Return whether a rule restricts jobs of this kind: readers see neither their payloads nor their messages.
create or replace function hides(p_tenant text, p_kind text) returns boolean
language sql stable set search_path from current as $$
    select exists (select from payload_rule r where r.classification = 'restricted'
                      and r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*'))
$$;

-- Return whether a rule lets only tokens decide the approvals of this kind.
create or replace function token_required(p_tenant text, p_kind text) returns boolean
language sql stable set search_path from current as $$
    select exists (select from payload_rule r where r.token_only and r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*'))
$$;

-- Return the text stored in place of the error messages of restricted jobs (features/payloads/model.py).
create or replace function withheld() returns text language sql immutable
return 'what is said of a restricted job''s failure is not kept';

-- Return the payload of a job as a reader may see it: "[restricted]" if a rule restricts it. Roles read payloads through this
-- function; workers receive them from claim and exchange.
create or replace function shown_payload(job uuid) returns json
language sql stable security definer set search_path from current as $$
    select case when exists (select from payload_rule r where r.classification = 'restricted'
                                and r.tenant in (j.tenant, '*') and r.kind in (j.kind, '*'))
                then '"[restricted]"'::json else j.payload end
      from job j
     where j.id = $1
       and (j.tenant = scope() or scope() = '*'
            or scope() is null and (select o.rolsuper from pg_roles o where o.rolname = caller()));
$$;

-- Return the payload that an attempt ran with, as a reader may see it.
create or replace function attempt_payload(job uuid, attempt integer) returns json
language sql stable security definer set search_path from current as $$
    select case when hides(r.tenant, j.kind) then '"[restricted]"'::json else r.payload end
      from (select v.* from replaced_payload v where v.job_id = $1 and v.attempt >= $2 order by v.attempt limit 1) r
      join job j on j.id = r.job_id
     where r.tenant = scope() or scope() = '*'
           or scope() is null and (select o.rolsuper from pg_roles o where o.rolname = caller())
    union all
    select shown_payload($1)
     where not exists (select from replaced_payload v where v.job_id = $1 and v.attempt >= $2)
$$;

-- Payload rules: how to set them, and the guards on rules, references and encrypted content.

-- --- setting rules ---

-- Set an operator's rule for a kind or replace it, and return its row. It applies to new jobs only.
create or replace function set_payload_rule(kind text, signal_only boolean default false, forbidden text[] default null,
                                            classification text default 'safe_metadata', max_bytes integer default null,
                                            max_result_bytes integer default null, store boolean default null,
                                            replaceable boolean default null, requires_approval jsonb default null,
                                            token_only boolean default null,
                                            actor text default null, for_tenant text default null) returns setof payload_rule
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_payload_rule.for_tenant, set_payload_rule.actor);
begin
    perform put_rule(v_scope, set_payload_rule.kind, '', set_payload_rule.signal_only, set_payload_rule.forbidden,
                     set_payload_rule.classification, set_payload_rule.max_bytes, set_payload_rule.max_result_bytes,
                     set_payload_rule.store, set_payload_rule.replaceable, set_payload_rule.requires_approval,
                     set_payload_rule.token_only, null);
    return query select r.* from payload_rule r
     where r.tenant = v_scope and r.kind = set_payload_rule.kind and r.declared_by = '';
end $$;

create or replace function put_rule(p_tenant text, p_kind text, p_declared_by text, p_signal_only boolean, p_forbidden text[],
                                    p_classification text, p_max_bytes integer, p_max_result_bytes integer, p_store boolean,
                                    p_replaceable boolean, p_requires_approval jsonb, p_token_only boolean, p_at_most_once boolean)
returns void language plpgsql set search_path from current as $$
begin
    insert into payload_rule as r (tenant, kind, declared_by, signal_only, forbidden, classification, max_bytes, max_result_bytes,
                                   store, replaceable, requires_approval, token_only, at_most_once, set_by, created_at, updated_at)
    values (p_tenant, p_kind, p_declared_by, coalesce(p_signal_only, false),
            coalesce(p_forbidden, '{body,content,raw,vector,embedding,secret,token,password,ssn,personal_data}'),
            coalesce(p_classification, 'safe_metadata'), p_max_bytes, p_max_result_bytes, p_store, p_replaceable,
            p_requires_approval, p_token_only, p_at_most_once, actor(), clock_now(), clock_now())
    on conflict (tenant, kind, declared_by) do update
       set signal_only = excluded.signal_only, forbidden = excluded.forbidden, classification = excluded.classification,
           max_bytes = excluded.max_bytes, max_result_bytes = excluded.max_result_bytes, store = excluded.store,
           replaceable = excluded.replaceable, requires_approval = excluded.requires_approval, token_only = excluded.token_only,
           at_most_once = excluded.at_most_once, set_by = excluded.set_by, updated_at = excluded.updated_at
     where (r.signal_only, r.forbidden, r.classification, r.max_bytes, r.max_result_bytes, r.store, r.replaceable,
            r.requires_approval, r.token_only, r.at_most_once) is distinct from
           (excluded.signal_only, excluded.forbidden, excluded.classification, excluded.max_bytes, excluded.max_result_bytes,
            excluded.store, excluded.replaceable, excluded.requires_approval, excluded.token_only, excluded.at_most_once);
end $$;

-- Remove a payload rule: an operator's, or with `declared_by` one that a program declared. Returns false if it does not exist.
create or replace function remove_payload_rule(kind text, declared_by text default '', actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_payload_rule.for_tenant, remove_payload_rule.actor);
begin
    delete from payload_rule r where r.tenant = v_scope and r.kind = remove_payload_rule.kind
       and r.declared_by = remove_payload_rule.declared_by;
    return found;
end $$;

-- Declare the rules that a program has in its code, instead of its earlier ones. Those that it no longer has are removed; those of other programs
-- and of operators do not change. Returns the number of rules.
create or replace function declare_payload_rules(program text, rules json, actor text default null, for_tenant text default null)
returns integer language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(declare_payload_rules.for_tenant, declare_payload_rules.actor);
begin
    if ascii(declare_payload_rules.program) <= 32 then
        raise exception 'program must not be empty' using errcode = 'ZH010';
    end if;
    delete from payload_rule r where r.tenant = v_scope and r.declared_by = declare_payload_rules.program
       and not exists (select from json_array_elements(rules) d where d ->> 'kind' = r.kind);
    perform put_rule(v_scope, d.kind, declare_payload_rules.program, d.signal_only, d.forbidden, d.classification, d.max_bytes,
                     d.max_result_bytes, d.store, d.replaceable, d.requires_approval, d.token_only, d.at_most_once)
       from json_to_recordset(rules) as d(kind text, signal_only boolean, forbidden text[], classification text, max_bytes integer,
                                          max_result_bytes integer, store boolean, replaceable boolean,
                                          requires_approval jsonb, token_only boolean, at_most_once boolean)
      order by d.kind;
    return json_array_length(rules);
end $$;

-- --- guards ---

-- `ruled` is set by the first rule and stays set: without it no rule would be checked.
create or replace function keep_ruled() returns trigger language plpgsql as $$
begin
    raise exception 'dispatch: ruled cannot be turned off once it is set' using errcode = 'ZH002';
end $$;
create or replace trigger keep_ruled before update on dispatch for each row
    when (old.ruled and not new.ruled) execute function keep_ruled();

-- Hand-written rules are checked too.
create or replace function on_rule() returns trigger language plpgsql set search_path from current as $$
begin
    update dispatch d set ruled = true where not d.ruled;
    return null;
end $$;
create or replace trigger on_rule after insert or update on payload_rule for each row
    when (new.signal_only or new.classification = 'restricted' or new.max_bytes is not null or new.max_result_bytes is not null
          or new.store is not null or new.replaceable is not null) execute function on_rule();   -- not for rules of approvals

-- References are set when the job is created, before it starts, and never change.
create or replace function guard_reference() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job_state s where s.id = new.job_id and s.tenant = new.tenant and s.state = 'queued' and s.attempt = 0) then
        raise exception 'reference: no job % in this tenant, or it has started', new.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on reference for each row execute function guard_reference();

-- --- re-encryption ---

create or replace function guard_resealed() returns trigger language plpgsql set search_path from current as $$
begin
    if new.n <> 1 + (select count(*) from resealed r where r.job_id = new.job_id)
       or not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant
                         and j.payload -> '$holdfast' ->> 'key' = new.from_key) then
        raise exception 'job %: its payload is not encrypted with key %, or this is not its next re-encryption',
            new.job_id, new.from_key
            using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on resealed for each row execute function guard_resealed();

-- Return encrypted payloads, and after the last of them results, whose key is not `but`, one page at a time.
create or replace function sealed_payloads(but text, after uuid default null, want integer default 100, for_tenant text default null)
returns table (id uuid, tenant text, payload text, result text)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(sealed_payloads.for_tenant);
begin
    return query
    select j.id, j.tenant,
           case when j.payload -> '$holdfast' ->> 'key' <> but then j.payload::text end,
           case when r.value -> '$holdfast' ->> 'key' <> but then r.value::text end
      from job j left join result r on r.job_id = j.id
     where (v_scope = '*' or j.tenant = v_scope) and (after is null or j.id > after)
       and (j.payload -> '$holdfast' ->> 'key' <> but or r.value -> '$holdfast' ->> 'key' <> but)
     order by j.id limit want;
end $$;

-- The seals of the ledger contain the digest of the old ciphertext. An action records the digest of the new one.
create or replace function note_resealed(p_tenant text, p_job uuid, p_what text, p_leaf bytea) returns void
language sql set search_path from current as $$
    select note_action(p_tenant, 'reseal', 'job', p_job::text,
                       jsonb_build_object(p_what, encode(substring(p_leaf from 9), 'hex')));
$$;

-- Replace an encrypted payload or result with the same content under another key. Returns whether the stored value was still
-- the one that was read.
create or replace function reseal(job uuid, was text, becomes text, actor text default null, for_tenant text default null)
returns boolean language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(reseal.for_tenant, reseal.actor);
    v_job   record;
begin
    select j.id, j.tenant, j.payload into v_job from job j
     where j.id = reseal.job and (v_scope = '*' or j.tenant = v_scope) for update;
    if not found then
        return false;
    end if;
    insert into orphaned_file (tenant, ref, job_id, at, again_at)   -- if it is not written after all, the reference is still in use
    select v_job.tenant, o.ref, left(right(o.ref, 101), 36)::uuid, clock_now(), clock_now()
      from (select was::json -> '$holdfast' ->> 'stored') o(ref) where o.ref is not null
    on conflict do nothing;
    if v_job.payload::text = was then
        insert into resealed (job_id, tenant, n, from_key, to_key, actor, at)
        select v_job.id, v_job.tenant, 1 + count(*), was::json -> '$holdfast' ->> 'key', becomes::json -> '$holdfast' ->> 'key',
               actor(), clock_now()
          from resealed r where r.job_id = v_job.id;
        update job j set payload = becomes::json where j.id = v_job.id;
        perform note_resealed(v_job.tenant, v_job.id, 'payload', content_leaf(0, 'payload', v_job.id, becomes, false, null));
        return true;
    end if;
    update result r set value = becomes::json,
           ref = case when r.ref like 'artifact://%' then coalesce(becomes::json -> '$holdfast' ->> 'stored', r.ref) else r.ref end
     where r.job_id = v_job.id and r.value::text = was and r.value -> '$holdfast' ->> 'key' is not null
       and becomes::json -> '$holdfast' ->> 'key' is not null;
    if not found then
        return false;
    end if;
    perform note_resealed(v_job.tenant, v_job.id, 'result', content_leaf(0, 'result', v_job.id, r.value::text, true, r.ref))
       from result r where r.job_id = v_job.id;
    return true;
end $$;

-- Return the encrypted results of steps, checkpoints and log lines of handlers whose key is not `but`, one page at a time in
-- key order.
create or replace function sealed_parts(but text, after_job uuid default null, after_what text default null, after_place text default null,
                                        want integer default 100, for_tenant text default null)
returns table (job_id uuid, tenant text, what text, place text, value text)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(sealed_parts.for_tenant);
begin
    return query
    select p.* from (
        select c.job_id, c.tenant, 'checkpoint', c.name, c.value::text from checkpoint c
         where (after_job is null or c.job_id >= after_job) and c.value -> '$holdfast' ->> 'key' <> but
        union all
        select t.job_id, t.tenant, 'step', t.n::text, t.value::text from step t
         where (after_job is null or t.job_id >= after_job) and t.value -> '$holdfast' ->> 'key' <> but and t.kind = 'step'
        union all
        select r.job_id, r.tenant, 'payload', r.attempt::text, r.payload::text from replaced_payload r
         where (after_job is null or r.job_id >= after_job) and r.payload -> '$holdfast' ->> 'key' <> but
        union all
        select l.job_id, l.tenant, 'log', l.attempt || '/' || l.n, l.lines from attempt_log l
         where (after_job is null or l.job_id >= after_job)
           and case when l.lines like '{"$holdfast":%' then l.lines::json -> '$holdfast' ->> 'key' <> but end) p(job_id, tenant, what, place, value)
     where (v_scope = '*' or p.tenant = v_scope) and (after_job is null or (p.job_id, p.what, p.place) > (after_job, after_what, after_place))
     order by p.job_id, p.what, p.place limit want;
end $$;

-- Replace one encrypted step result, checkpoint or log part. Returns false if the stored value is no longer the one that was
-- read, or if the new value is not a re-encryption of it. A finished step changes only this way (guard_step).
create or replace function reseal_part(job uuid, what text, place text, was text, becomes text, actor text default null,
                                       for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(reseal_part.for_tenant, reseal_part.actor);
begin
    if what = 'payload' then
        insert into orphaned_file (tenant, ref, job_id, at, again_at)   -- if it is not written after all, the reference is still in use
        select r.tenant, o.ref, left(right(o.ref, 101), 36)::uuid, clock_now(), clock_now()
          from replaced_payload r, lateral (select was::json -> '$holdfast' ->> 'stored') o(ref)
         where r.job_id = job and r.attempt = place::integer and o.ref is not null and (v_scope = '*' or r.tenant = v_scope)
        on conflict do nothing;
        update replaced_payload r set payload = becomes::json
         where r.job_id = job and r.attempt = place::integer and r.payload::text = was and (v_scope = '*' or r.tenant = v_scope);
    elsif not sealed_alike(was::json, becomes::json) then
        return false;
    elsif what = 'step' then
        update step t set value = becomes::json
         where t.job_id = job and t.n = place::integer and t.value::text = was and (v_scope = '*' or t.tenant = v_scope);
    elsif what = 'log' then
        update attempt_log l set lines = becomes
         where l.job_id = job and l.attempt || '/' || l.n = place and l.lines = was and (v_scope = '*' or l.tenant = v_scope);
    else
        update checkpoint c set value = becomes::json
         where c.job_id = job and c.name = place and c.value::text = was and (v_scope = '*' or c.tenant = v_scope);
    end if;
    return found;
end $$;

-- --- replacing the payload of a waiting job ---

create or replace function payload_digest(p_job uuid, p_payload json) returns text
language sql stable set search_path from current
return encode(substring(content_leaf(0, 'payload', p_job, p_payload::text, false, null) from 9), 'hex');

-- Whether the newest event of the job records exactly this replacement. If an attempt ran with the old payload, it is kept.
create or replace function payloads_on_update(p_job uuid, p_old json, p_new json) returns boolean
language plpgsql set search_path from current as $$
begin
    if (select e.type = 'replace' and e.meta ->> 'old' = payload_digest(p_job, p_old)
               and e.meta ->> 'new' = payload_digest(p_job, p_new)
          from event e where e.job_id = p_job order by e.seq desc limit 1) is not true then
        return false;
    end if;
    insert into replaced_payload (job_id, tenant, attempt, payload, at)
    select s.id, s.tenant, s.attempt, p_old, clock_now() from job_state s
     where s.id = p_job and s.attempt > coalesce((select max(r.attempt) from replaced_payload r where r.job_id = p_job), 0);
    return true;
end $$;

create or replace function guard_replaced_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job_state s where s.id = new.job_id and s.tenant = new.tenant and s.attempt = new.attempt)
       or (select e.type = 'replace' and e.meta ->> 'old' = payload_digest(new.job_id, new.payload)
             from event e where e.job_id = new.job_id order by e.seq desc limit 1) is not true then
        raise exception 'replaced_payload: written only when the payload is replaced' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on replaced_payload for each row execute function guard_replaced_insert();

-- Re-encrypting the same payload with another key is allowed.
create or replace function guard_replaced_update() returns trigger language plpgsql set search_path from current as $$
begin
    if to_jsonb(new) - 'payload' <> to_jsonb(old) - 'payload' or not resealed_alike(old.payload, new.payload) then
        raise exception 'replaced_payload: rows are never changed (update refused)' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on replaced_payload for each row execute function guard_replaced_update();

-- Replace the payload of a waiting job that has not started yet, if a rule for its kind sets `replaceable`. The lock on the
-- job's state prevents a claim meanwhile: a later claim reads the new payload.
create or replace function replace_payload(job uuid, payload json, reason text, actor text default null, for_tenant text default null)
returns table (id uuid, state state, refused boolean, refusal text)
language plpgsql security definer set search_path from current as $$
declare
    v_scope text := enter(replace_payload.for_tenant, replace_payload.actor);
    v_job   record;
    v_rule  payload_rule;
    v_stored text;
begin
    id := replace_payload.job;
    refused := true;
    select s.state, s.tenant, s.kind into v_job from job_state s
     where s.id = replace_payload.job and (v_scope = '*' or s.tenant = v_scope) for update;
    state := v_job.state;
    if v_job.state is not null then
        v_rule := rule_for(v_job.tenant, v_job.kind);
    end if;
    refusal := case
        when v_job.state is null then 'not_found'
        when coalesce(replace_payload.reason, '') !~ E'\\S' then 'reason_required'
        when v_job.state not in ('queued', 'retry_waiting') then 'not_waiting'
        when v_rule.replaceable is not true then 'not_replaceable'
        when exists (select from job j where j.id = replace_payload.job and j.content_key is not null) then 'content_key'
        when exists (select from step t where t.job_id = replace_payload.job) then 'steps_recorded'
        when exists (select from checkpoint c where c.job_id = replace_payload.job and c.name not like 'holdfast:%') then 'checkpoints_recorded' end;
    if refusal is not null then
        return next;
        return;
    end if;
    perform guard_payload(v_rule, v_job.kind, replace_payload.payload);
    if too_deep(replace_payload.payload::text) then
        perform refuse_deep(replace_payload.job);
    end if;
    refused := false;
    if exists (select from job j where j.id = replace_payload.job and j.payload::text = replace_payload.payload::text) then
        return next;   -- unchanged
        return;
    end if;
    update job_state s set note = (coalesce(s.note, '{}') - 'moved' - 'rescheduled') || jsonb_build_object('replaced',
               jsonb_build_object('old', payload_digest(j.id, j.payload), 'new', payload_digest(j.id, replace_payload.payload),
                                  'size', octet_length(replace_payload.payload::text), 'reason', replace_payload.reason,
                                  'times', 1 + (select count(*) from event e where e.job_id = j.id and e.type = 'replace')))
      from job j where j.id = s.id and s.id = replace_payload.job;
    select j.payload -> '$holdfast' ->> 'stored' into v_stored from job j
     where j.id = replace_payload.job and j.payload::text like '{"$holdfast":%';
    update job j set payload = replace_payload.payload where j.id = replace_payload.job;
    if v_stored is not null and not still_named(replace_payload.job, v_stored) then
        insert into orphaned_file (tenant, ref, job_id, at, again_at)
        values (v_job.tenant, v_stored, left(right(v_stored, 101), 36)::uuid, clock_now(), clock_now())
        on conflict do nothing;
    end if;
    return next;
end $$;
