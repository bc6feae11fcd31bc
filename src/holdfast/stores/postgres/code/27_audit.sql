-- The bytes that are hashed, who may write the trail, and how a change of the configuration gets into it (HF-4, rule 28).

-- A field: its length in bytes, a colon, and it; a minus for null. Nothing in a field can then be taken for another.
create or replace function audit_field(p_value text) returns text language sql immutable
return coalesce(octet_length(p_value)::text || ':' || p_value, '-');   -- ::text keeps it immutable, and so inlined

-- The digest of an event: of all its columns, times in microseconds since 1970. The library computes the same by itself,
-- and checks with that.
create or replace function event_digest(e event) returns bytea language sql stable
return sha256(convert_to(
    '5:event' || audit_field(e.seq::text) || audit_field(e.job_id::text) || audit_field(e.tenant) || audit_field(e.kind)
    || audit_field(e.verb) || audit_field(e.from_state) || audit_field(e.to_state) || audit_field(e.attempt::text)
    || audit_field((extract(epoch from in_time(e.at)) * 1000000)::bigint::text) || audit_field(e.actor) || audit_field(e.meta::text)
    || audit_field(e.xid::text), 'UTF8'));

-- The digest of what a job carries, with the number of the event that brought it; negative if it is encrypted.
create or replace function content_leaf(p_seq bigint, p_what text, p_job uuid, p_text text, p_pair boolean, p_ref text) returns bytea
language sql stable
return int8send(case when p_text like '{"$holdfast"%' and position('"key"' in p_text) > 0 then -p_seq else p_seq end)
    || sha256(convert_to(audit_field(p_what) || audit_field(p_job::text) || audit_field(p_text)
                         || case when p_pair then audit_field(p_ref) else '' end, 'UTF8'));

create or replace function action_digest(a action) returns bytea language sql stable
return sha256(convert_to(
    '6:action' || audit_field(a.seq::text) || audit_field(a.tenant) || audit_field((extract(epoch from in_time(a.at)) * 1000000)::bigint::text)
    || audit_field(a.actor) || audit_field(a.verb) || audit_field(a.subject) || audit_field(a.name)
    || audit_field(a.changed::text) || audit_field(a.first_seq::text) || audit_field(a.last_seq::text)
    || audit_field(a.xid::text), 'UTF8'));

create or replace trigger refuse_update before update on action for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on action for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on action for each statement execute function refuse_change();
create or replace trigger refuse_update before update on seal for each statement execute function refuse_change();
create or replace trigger refuse_delete before delete on seal for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on seal for each statement execute function refuse_change();

-- Nobody writes one for another, or for another time.
create or replace function judge_action() returns trigger language plpgsql set search_path from current as $$
begin
    if new.actor is distinct from actor() or new.xid <> pg_current_xact_id()::text::bigint
       -- One that a trigger writes has the time of just now, also where somebody moves the clock meanwhile, as tests do.
       or pg_trigger_depth() < 2 and abs(extract(epoch from new.at - clock_now())) > 60 then
        raise exception 'action: written for whoever acts, when they act, and for nobody else' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on action for each row execute function judge_action();

-- A seal continues the chain. Two that seal at once make one.
create or replace function judge_seal() returns trigger language plpgsql set search_path from current as $$
declare
    v_last record;
begin
    select s.number, s.digest into v_last from seal s order by s.number desc limit 1;
    if new.number <> coalesce(v_last.number, 0) + 1 or new.previous <> coalesce(v_last.digest, repeat('0', 64)) then
        raise exception 'seal %: does not continue the chain', new.number using errcode = 'ZH059';
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert on seal for each row execute function judge_seal();

create or replace function note_action(p_tenant text, p_verb text, p_subject text, p_name text, p_changed jsonb default null,
                                       p_first bigint default null, p_last bigint default null) returns void
language sql set search_path from current as $$
    insert into action (tenant, at, actor, verb, subject, name, changed, first_seq, last_seq)
    values (p_tenant, clock_now(), actor(), p_verb, p_subject, p_name, p_changed, p_first, p_last);
$$;

-- What a trigger calls for a row of the configuration that was added, changed or removed. Its arguments are the word for such
-- a thing, the columns that name it, those whose values are told, and those of which only is told that they changed; which
-- tables have it is in stores/action_triggers.py.
create or replace function record_action() returns trigger language plpgsql security definer set search_path from current as $$
declare
    v_old     jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) end;
    v_new     jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) end;
    v_row     jsonb := coalesce(v_new, v_old);
    v_verb    text;
    v_changed jsonb;
begin
    v_verb := case
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
                    when n.told then jsonb_build_array(v_old -> n.name, v_new -> n.name)
                    else '"changed"' end as says
          from (select unnest(string_to_array(tg_argv[2], ' ')) as name, true as told
                union all select unnest(string_to_array(tg_argv[3], ' ')), false) n
         where n.name <> '' and n.name not like '%\_at'
           and case when tg_op = 'UPDATE' then v_old -> n.name is distinct from v_new -> n.name
                    else n.told and v_row ->> n.name is not null end) c;
    perform note_action(v_row ->> 'tenant', v_verb, tg_argv[0],
        (select string_agg(v_row ->> c.name, ' ' order by c.n)
           from unnest(string_to_array(tg_argv[1], ' ')) with ordinality c (name, n)), v_changed);
    return null;
end $$;
