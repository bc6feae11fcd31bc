-- Dead letters in groups (DP-15): which job is buried, for what, and how many there are. Kept by the ledger's trigger
-- (21_record_transition.sql) for every way into and out of the state, also by hand: it reads
-- the rows of every step anyway, and calls this when one of them was failed or dead.

-- Groups are locked in the order of their names, so that two who bury do not wait for each other.
create or replace function keep_dead_letters(p_buried uuid[], p_left uuid[], p_now timestamptz) returns void
language plpgsql set search_path from current
    set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_row record;
begin
    with gone as (
        delete from dead_letter l where l.job_id = any (p_left) returning l.tenant, l.fingerprint, l.job_id)
    , counted as (
        select g.tenant, g.fingerprint, count(*) as n, max(g.job_id::text)::uuid as job from gone g group by 1, 2)
    , locked as materialized (
        select o.tenant, o.fingerprint, c.n, c.job
          from counted c join dead_letter_group o on o.tenant = c.tenant and o.fingerprint = c.fingerprint
         order by 1, 2 for update of o)
    update dead_letter_group o set open = o.open - k.n, last_job = k.job
      from locked k where o.tenant = k.tenant and o.fingerprint = k.fingerprint;

    for v_row in
        select s.tenant, f.fingerprint, s.kind, count(*) as n, max(s.id::text)::uuid as job, array_agg(s.id) as jobs,
               array_agg(s.queue) as queues, min(f.frame) as frame
          from job_state s, lateral (
               select coalesce(s.note ->> 'fingerprint', fingerprint(s.kind, s.error_code, s.error_message)) as fingerprint,
                      s.note ->> 'frame' as frame) f
         where s.id = any (p_buried) group by 1, 2, 3 order by 1, 2
    loop
        insert into dead_letter_group as o (tenant, fingerprint, kind, error_code, error_message, frame, sample_job, first_at,
                                            last_at, times, open, last_job)
        select s.tenant, v_row.fingerprint, s.kind, s.error_code, s.error_message, v_row.frame, s.id, p_now, p_now,
               v_row.n, v_row.n, s.id
          from job_state s where s.id = v_row.job
        on conflict (tenant, fingerprint) do update
           set error_code = excluded.error_code, error_message = excluded.error_message, sample_job = excluded.sample_job,
               last_at = greatest(o.last_at, excluded.last_at), times = o.times + excluded.times, open = o.open + excluded.open,
               last_job = excluded.last_job;
        insert into dead_letter (job_id, tenant, fingerprint, kind, queue, buried_at)
        select j.id, v_row.tenant, v_row.fingerprint, v_row.kind, j.queue, p_now from unnest(v_row.jobs, v_row.queues) as j(id, queue);
    end loop;
end $$;

-- Rows come and go with what happens to jobs; of a group people write the note alone.
create or replace trigger refuse_insert before insert on dead_letter for each statement execute function refuse_insert();
create or replace trigger refuse_insert before insert on dead_letter_group for each statement execute function refuse_insert();
create or replace trigger refuse_update before update on dead_letter for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on dead_letter for each statement execute function refuse_change();
create or replace trigger refuse_truncate before truncate on dead_letter_group for each statement execute function refuse_change();

create or replace function refuse_recount() returns trigger language plpgsql as $$
begin
    if pg_trigger_depth() < 2 then
        raise exception '% is kept by what happens to jobs (% refused)', tg_table_name, lower(tg_op)
            using errcode = 'ZH002', hint = 'Redrive or discard dead letters; only the note of a group is written.';
    end if;
    return coalesce(new, old);
end $$;
create or replace trigger refuse_delete before delete on dead_letter for each row execute function refuse_recount();
create or replace trigger refuse_recount before update on dead_letter_group for each row
    when (to_jsonb(new) - '{note,noted_by,noted_at}'::text[] <> to_jsonb(old) - '{note,noted_by,noted_at}'::text[])
    execute function refuse_recount();
-- A group that nobody has anything open in may be forgotten, as retention does.
create or replace trigger refuse_delete before delete on dead_letter_group for each row
    when (old.open > 0) execute function refuse_change();

create or replace function note_dead_letters(fingerprint text, note text, actor text default null, for_tenant text default null)
returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    v_scope text := enter(note_dead_letters.for_tenant, nullif(note_dead_letters.actor, ''));
    v_note  text := nullif(note_dead_letters.note, '');
begin
    update dead_letter_group g
       set note = v_note, noted_by = case when v_note is not null then actor() end,
           noted_at = case when v_note is not null then clock_now() end
     where g.tenant = v_scope and g.fingerprint = note_dead_letters.fingerprint;
    return found;
end $$;
