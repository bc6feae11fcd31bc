-- What may be in a payload (DP-4), for every way into `job`. Looked at only where `dispatch.ruled` says that there is a rule.

-- All rules for a kind in a tenant, together: of each point the strictest. Nothing where there is none, or they ask for nothing
-- of a payload that the database could judge.
create or replace function rule_for(p_tenant text, p_kind text) returns payload_rule
language plpgsql stable set search_path from current as $$
declare
    v_rule payload_rule;
begin
    select p_tenant, p_kind, '', bool_or(r.signal_only),
           (select array_agg(distinct f) from payload_rule s, unnest(s.forbidden) f
             where s.tenant in (p_tenant, '*') and s.kind in (p_kind, '*') and s.signal_only),
           case when bool_or(r.classification = 'restricted') then 'restricted' else 'safe_metadata' end,
           min(r.max_bytes), min(r.max_result_bytes), bool_and(r.store), '', null, null
      into v_rule
      from payload_rule r where r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*') having count(*) > 0;
    return v_rule;
end $$;

-- Where the first of these keys stands, at any depth and in arrays, in whatever case: '$.items[3].password'. Payloads are
-- kept as they were sent, so a key that stands there twice is met twice. First the text is asked, which is nearly always
-- enough; a key can hide from that only behind \u.
create or replace function forbidden_at(p_payload json, p_forbidden text[]) returns text
language plpgsql immutable set search_path from current as $$
declare
    v_text text := lower(p_payload::text);
begin
    if position('\u' in v_text) = 0
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

create or replace function judge_payload(p_rule payload_rule, p_kind text, p_payload json) returns void
language plpgsql set search_path from current as $$
declare
    v_path text;
begin
    if octet_length(p_payload::text) > p_rule.max_bytes then
        raise exception 'the payload of % has % bytes; a rule allows %', p_kind, octet_length(p_payload::text), p_rule.max_bytes
            using errcode = 'ZH051', hint = 'Pass a reference, or let the rule store what is larger.';
    end if;
    if p_rule.signal_only then
        v_path := forbidden_at(p_payload, p_rule.forbidden);
        if v_path is not null then
            raise exception 'the payload of % has a forbidden key at %: jobs of it carry signals, not data', p_kind, v_path
                using errcode = 'ZH050', hint = 'Keep the data where it is and pass a reference: source_ref.';
        end if;
    end if;
end $$;

-- Whether a rule says that jobs of a kind are restricted: what they were given and what they say is not for readers.
create or replace function hides(p_tenant text, p_kind text) returns boolean
language sql stable set search_path from current as $$
    select exists (select from payload_rule r where r.classification = 'restricted'
                      and r.tenant in (p_tenant, '*') and r.kind in (p_kind, '*'))
$$;

-- What is kept in place of the words of its errors (features/payloads/model.py).
create or replace function withheld() returns text language sql immutable
return 'what is said of a restricted job''s failure is not kept';

-- What a reader may see of a payload: nothing where a rule says that it is restricted. Roles read it through here; what a worker
-- is handed comes from claim and turn.
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
