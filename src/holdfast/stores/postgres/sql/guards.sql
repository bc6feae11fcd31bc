-- Guards: changes that the tables refuse from every writer.

-- Only triggers insert rows into job_state and event: depth 1 means a hand-written insert.
create or replace function refuse_insert() returns trigger language plpgsql as $$
begin
    if pg_trigger_depth() < 2 then
        raise exception '% is written by triggers only', tg_table_name
            using errcode = 'ZH002', hint = 'Insert into job, or call enqueue(…).';
    end if;
    return new;   -- null in a statement trigger, without an expression to evaluate
end $$;

create or replace trigger refuse_insert before insert on job_state for each statement execute function refuse_insert();
create or replace trigger refuse_insert before insert on event for each statement execute function refuse_insert();

create or replace function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception '%: rows are never changed (% refused)', tg_table_name, lower(tg_op) using errcode = 'ZH002';
end $$;

-- A job's facts never change, with four exceptions: retention empties the payload of a cleaned job, an encrypted payload may
-- be re-encrypted as announced in `resealed`, an operator may replace the payload of a waiting job as its newest event
-- records, and the external reference may change, which is recorded as an action.
create or replace function guard_job_update() returns trigger language plpgsql set search_path from current as $$
begin
    if to_jsonb(new) - array['payload', 'external_ref'] <> to_jsonb(old) - array['payload', 'external_ref']
       or length(new.external_ref) > 255 and new.external_ref is distinct from old.external_ref
       or not (new.payload::text = old.payload::text and new.external_ref is distinct from old.external_ref
               or new.payload::text = '{}' and exists (select from job_state s where s.id = old.id and s.state = 'cleaned')
               or resealed_so(old.id, old.payload, new.payload)
               or payloads_on_update(old.id, old.payload, new.payload)) then
        raise exception 'job %: the facts and the payload of a job never change', old.id using errcode = 'ZH002';
    end if;
    return new;
end $$;

create or replace trigger guard_update before update on job for each row execute function guard_job_update();

-- Steps, checkpoints and tags are written by functions, which check the lease of the job or create it. A statement that a
-- person writes has no function in its context but this one, or a DO block.
create or replace function refuse_unleased() returns trigger language plpgsql set search_path from current as $$
declare v_context text;
begin
    get diagnostics v_context = pg_context;
    if position(e'\n' in v_context) = 0 or position('inline_code_block' in v_context) > 0 then
        raise exception '%: written only by the functions of this schema (% refused)', tg_table_name, lower(tg_op)
            using errcode = 'ZH002', hint = 'Steps and checkpoints need the lease of their job: save_steps, save_checkpoint.';
    end if;
    return new;
end $$;
-- After the statement, so that more specific refusals come first.
do $$
declare v_table text;
begin
    foreach v_table in array array['step', 'checkpoint'] loop
        execute format('create or replace trigger refuse_unleased after insert or update on %I for each statement execute function refuse_unleased()', v_table);
    end loop;
end $$;
-- The trigger of `job` writes the tags of new jobs, so these pay for one comparison per row and no call.
create or replace trigger refuse_unleased before insert on job_tag for each row when (pg_trigger_depth() = 0) execute function refuse_unleased();
create or replace trigger refuse_delete_by_hand before delete on job_tag for each statement when (pg_trigger_depth() = 0) execute function refuse_unleased();

-- A job is deleted completely or not at all: first its state (cleaned only), then its facts, then its ledger. In a partition
-- whose purge is announced, finished jobs are deleted without being cleaned first.
create or replace function guard_state_delete() returns trigger language plpgsql set search_path from current as $$
declare
    v_low  uuid;
    v_high uuid;
    v_job  record;
begin
    select p.low, p.high into v_low, v_high from event_partition p where p.announced is not null;
    select g.id, g.state into v_job from gone g
     where g.state <> 'cleaned'
       and (g.state in ('succeeded', 'failed', 'cancelled') and g.id >= v_low and g.id < v_high) is not true limit 1;
    if found then
        raise exception 'job %: only a cleaned job can be purged, and this one is %', v_job.id, v_job.state
            using errcode = 'ZH002';
    end if;
    return null;
end $$;

create or replace trigger guard_delete after delete on job_state
    referencing old table as gone for each statement execute function guard_state_delete();

create or replace function guard_delete() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s join gone g on s.id = g.job_id) then
        raise exception '%: rows are never deleted while their job exists', tg_table_name
            using errcode = 'ZH002', hint = 'Retention purges a cleaned job as a whole.';
    end if;
    return null;
end $$;

-- When all jobs of a partition are deleted at once, it is cheaper to search for remaining states between the first and the
-- last id.
create or replace function guard_job_delete() returns trigger language plpgsql set search_path from current set jit = off as $$
declare v_id uuid;
begin
    if (select count(*) from (select from gone limit 5000) g) < 5000 then
        select s.id into v_id from gone g join job_state s on s.id = g.id limit 1;
    else
        select s.id into v_id from job_state s
         where s.id >= (select g.id from gone g order by g.id limit 1)
           and s.id <= (select g.id from gone g order by g.id desc limit 1)
           and s.id in (select g.id from gone g) limit 1;
    end if;
    if found then
        raise exception 'job %: never deleted while it has a state', v_id
            using errcode = 'ZH002', hint = 'Retention purges a cleaned job as a whole.';
    end if;
    return null;
end $$;

create or replace trigger guard_delete after delete on job
    referencing old table as gone for each statement execute function guard_job_delete();

-- A result is written once, when its job succeeds. Retention deletes that of a cleaned job; an encrypted one may be
-- re-encrypted (features/payloads/postgres.sql). Nothing else is allowed.
create or replace function guard_result_update() returns trigger language plpgsql set search_path from current as $$
begin
    if (old.job_id, old.tenant) is distinct from (new.job_id, new.tenant) or not coalesce(
           new.value::jsonb = jsonb_build_object('$holdfast', new.value -> '$holdfast')
           and (new.value -> '$holdfast')::jsonb - array['key', 'sealed', 'stored'] = '{}'
           and old.value -> '$holdfast' ->> 'key' <> new.value -> '$holdfast' ->> 'key'
           and (old.value -> '$holdfast' -> 'stored' is null) = (new.value -> '$holdfast' -> 'stored' is null)
           and length(old.value -> '$holdfast' ->> 'sealed') is not distinct from length(new.value -> '$holdfast' ->> 'sealed')
           and new.ref is not distinct from case when old.ref like 'artifact://%'
               then coalesce(new.value -> '$holdfast' ->> 'stored', old.ref) else old.ref end, false) then
        raise exception 'job %: a result never changes', old.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on result for each row execute function guard_result_update();

create or replace function guard_result_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from added a left join job_state s on s.id = a.job_id and s.tenant = a.tenant
                where (s.state = 'succeeded') is not true) then
        raise exception 'result: written once, when its job succeeds' using errcode = 'ZH002';
    end if;
    return null;
end $$;
create or replace trigger guard_insert after insert on result
    referencing new table as added for each statement execute function guard_result_insert();

create or replace function guard_until_cleaned() returns trigger language plpgsql set search_path from current as $$
begin
    if exists (select from job_state s join gone g on s.id = g.job_id where s.state <> 'cleaned') then
        raise exception '%: only retention deletes rows, and only of cleaned jobs', tg_table_name using errcode = 'ZH002';
    end if;
    return null;
end $$;

-- A lease is renewed, ended once, and marked as swept when no job refers to it. The values it was opened with never change, an
-- ended lease stays ended, and a lease that holds jobs cannot be deleted. A renewal does not shorten it: then a running job
-- could be declared lost. The exception is a lease that was renewed in the future, because the clock was set back since
-- (heartbeat, recover_leases); no renewal may be dated there. Operations allow five seconds before they correct such a lease, and
-- may have waited for its row since they read the clock.
create or replace function guard_lease_change() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_op = 'UPDATE' and (new.renewals < old.renewals
           or (new.until < old.until or new.renewed_at < old.renewed_at) and old.renewed_at <= clock_now() + interval '2 s'
           or new.renewed_at > old.renewed_at and new.renewed_at > clock_now() + interval '1 s') then
        raise exception 'lease %: a renewal cannot shorten it, nor be dated in the past or in the future', old.id
            using errcode = 'ZH002', hint = 'End it: select end_lease(…).';
    end if;
    if tg_op = 'UPDATE' and ((old.id, old.tenant, old.holder, old.opened_at) is distinct from (new.id, new.tenant, new.holder, new.opened_at)
           or old.ended_at is not null and (old.ended_at, old.ended_why, old.until, old.renewed_at, old.renewals)
              is distinct from (new.ended_at, new.ended_why, new.until, new.renewed_at, new.renewals)
           or old.swept_at is not null and new.swept_at is distinct from old.swept_at) then
        raise exception 'lease %: its initial values and its end cannot change', old.id
            using errcode = 'ZH002', hint = 'Open another lease, or end this one: select end_lease(…).';
    elsif (tg_op = 'DELETE' or new.swept_at is not null and old.swept_at is null)
          and exists (select from job_state s where s.lease = old.id) then
        raise exception 'lease %: it holds jobs and cannot be deleted', old.id
            using errcode = 'ZH002', hint = 'End it: select end_lease(…). The next maintenance run frees its jobs.';
    end if;
    return coalesce(new, old);
end $$;
create or replace trigger guard_change before update or delete on lease for each row execute function guard_lease_change();

-- --- re-encrypted values ---

-- An encrypted value names its key: {"$holdfast": {"key": …, "sealed": …}}, or "stored" if the ciphertext is stored elsewhere.
-- Of the ciphertext only the length can be checked here, which another key does not change. That the content is the same, and
-- belongs to this job, is guaranteed by the authenticated encryption: a valid value cannot be produced without the key.
create or replace function sealed_alike(p_old json, p_new json) returns boolean
language sql immutable set search_path from current as $$
    select ((p_new::jsonb = jsonb_build_object('$holdfast', jsonb_build_object(
                 'key', p_new -> '$holdfast' ->> 'key', 'sealed', p_new -> '$holdfast' ->> 'sealed'))
             and length(p_old -> '$holdfast' ->> 'sealed') = length(p_new -> '$holdfast' ->> 'sealed')
             -- Stored by a handler: the references differ only in the digest.
             or p_new::jsonb = jsonb_build_object('$holdfast', jsonb_build_object(
                 'key', p_new -> '$holdfast' ->> 'key', 'stored', p_new -> '$holdfast' ->> 'stored',
                 'size', p_new::jsonb -> '$holdfast' -> 'size'))
             and left(p_old -> '$holdfast' ->> 'stored', -64) = left(p_new -> '$holdfast' ->> 'stored', -64))
            and p_old -> '$holdfast' ->> 'key' <> p_new -> '$holdfast' ->> 'key') is true
$$;

create or replace function resealed_alike(p_old json, p_new json) returns boolean
language plpgsql immutable set search_path from current as $$
declare
    v_old json := p_old -> '$holdfast';
    v_new json := p_new -> '$holdfast';
begin
    return (p_new::jsonb - '$holdfast' = '{}' and v_new::jsonb - array['key', 'sealed', 'stored'] = '{}'
            and (v_old -> 'sealed' is null) = (v_new -> 'sealed' is null) and (v_old -> 'stored' is null) = (v_new -> 'stored' is null)
            and length(v_old ->> 'sealed') is not distinct from length(v_new ->> 'sealed')
            and v_old ->> 'key' <> v_new ->> 'key') is true;
end $$;

create or replace function resealed_so(p_job uuid, p_old json, p_new json) returns boolean
language sql stable set search_path from current as $$
    select (resealed_alike(p_old, p_new)
            and (select (r.from_key, r.to_key) = (p_old -> '$holdfast' ->> 'key', p_new -> '$holdfast' ->> 'key') from resealed r
                  where r.job_id = p_job order by r.n desc limit 1)) is true
$$;
