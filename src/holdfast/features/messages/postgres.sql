-- Messages to jobs. A handler that waits for one is a wait for the event mailbox:NAME (stores/postgres/sql/steps.sql).

-- Send a message to a job: it continues if it waits for one of this name, and receives it later otherwise. Sending it again with
-- the same `key` or `message` id returns the existing message.
create or replace function send_message(job uuid, name text, data json default 'null', asked boolean default false,
                                        key text default null, actor text default null, for_tenant text default null,
                                        message uuid default null)
returns table (id uuid, created boolean, woke integer, refused boolean, reason text, detail text)
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(send_message.for_tenant, nullif(send_message.actor, ''));
    v_job   record;
    v_id    uuid := coalesce(send_message.message, uuid7());
    v_n     integer;
begin
    perform check_isolation();   -- an older snapshot misses a job that has begun to wait (recheck_waits)
    if too_deep(send_message.data::text) then
        raise exception 'the data of message % is nested more than 100 levels deep', send_message.name
            using errcode = 'ZH091', hint = 'Flatten it, or store it elsewhere and send a reference.';
    end if;
    select s.tenant, s.state into v_job from job_state s where s.id = send_message.job and (v_scope = '*' or s.tenant = v_scope);
    if not found then
        return query select null::uuid, false, 0, true, 'not_found', format('no job %s', send_message.job);
        return;
    end if;
    -- Sent before, with this key or by a call whose response was lost.
    return query select m.id, m.id = v_id, 0, false, null::text, null::text from message m
     where m.job_id = send_message.job and (m.id = v_id or m.name = send_message.name and m.key = send_message.key);
    if found then
        return;
    end if;
    if v_job.state in ('succeeded', 'failed', 'cancelled', 'cleaned') then
        return query select null::uuid, false, 0, true, 'job_ended', format('job %s is %s and receives no more messages',
                                                                            send_message.job, v_job.state);
        return;
    end if;
    insert into message as m (id, tenant, job_id, n, name, data, asked, key, sent_by, sent_at)
    values (v_id, v_job.tenant, send_message.job,
            1 + coalesce((select max(o.n) from message o where o.job_id = send_message.job and o.name = send_message.name), 0),
            send_message.name, send_message.data, send_message.asked, send_message.key, actor(), v_now)
    on conflict do nothing;
    if not found then   -- at the same time with this key
        return query select m.id, false, 0, false, null::text, null::text from message m
         where m.job_id = send_message.job and m.name = send_message.name and m.key = send_message.key;
        return;
    end if;
    woke := 0;
    select min(t.n) into v_n from step t
     where t.job_id = send_message.job and t.kind = 'event' and t.name = 'mailbox:' || send_message.name and t.ended_at is null;
    if v_n is not null then
        perform from job_state s where s.id = send_message.job for update;
        -- The first message that the job has not received: one that was committed while it began to wait may come before this.
        update step t set value = event_document(messages_on_wait(t.job_id, t.n)), ended_at = v_now
         where t.job_id = send_message.job and t.n = v_n and t.ended_at is null;
        -- It sleeps until the message; otherwise it is already running and will find it.
        woke := continue_job(send_message.job, v_n, jsonb_build_object('event', 'mailbox:' || send_message.name))::integer;
    end if;
    id := v_id;
    created := true;
    refused := false;
    return next;
end $$;

-- The first message for a waiting step that the job has not received, in the form of an event; null if there is none.
create or replace function messages_on_wait(p_job uuid, p_n integer) returns app_event
language plpgsql set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_message message;
    v_event   app_event;
begin
    select m.* into v_message from step t join message m on m.job_id = t.job_id and m.name = substr(t.name, 9)
     where t.job_id = p_job and t.n = p_n
       and not exists (select from step u where u.job_id = p_job and u.kind = 'event' and u.value ->> 'id' = m.id::text)
     order by m.n, m.sent_at, m.id limit 1;
    v_event.id := v_message.id;
    v_event.name := 'mailbox:' || v_message.name;
    v_event.data := json_build_object('data', v_message.data, 'asked', v_message.asked);
    v_event.sent_by := v_message.sent_by;
    v_event.sent_at := v_message.sent_at;
    return v_event;
end $$;

create or replace function guard_message() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (select from job j where j.id = new.job_id and j.tenant = new.tenant) then
        raise exception 'message: job % does not exist', new.job_id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on message for each row execute function guard_message();
