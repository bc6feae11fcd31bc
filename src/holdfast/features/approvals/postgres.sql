-- Requests, votes and notices never change, a closed approval never reopens, and votes decide an approval.

-- A job waits for one approval and leaves it only by that approval's decision: updating the state alone is refused. A job that
-- is cancelled or whose deadline passes withdraws its approval. Called by record_transition.
create or replace function approvals_on_transition(old job_state, new job_state) returns void
language plpgsql set search_path from current as $$
declare v_approval approval;
begin
    if new.state = old.state then
        if new.approval_id is distinct from old.approval_id then
            raise exception 'job %: it waits for approval % and cannot wait for another one', old.id, old.approval_id
                using errcode = 'ZH002';
        end if;
        return;
    elsif new.approval_id is not null then
        raise exception 'job %: approval_id must be cleared when the job leaves waiting_for_approval', old.id
            using errcode = 'ZH002';
    end if;
    select g.* into v_approval from approval g where g.id = old.approval_id and g.job_id = old.id and g.tenant = old.tenant;
    if new.state = 'cancelled'
       or new.state = 'failed' and new.error_code = 'deadline_passed' and old.deadline_at <= clock_now() then
        update approval g set state = 'withdrawn', decided_at = clock_now() where g.id = v_approval.id and g.state = 'open';
    elsif (case new.state when 'queued' then v_approval.state = 'approved' or v_approval.state in ('denied', 'expired') and v_approval.on_deny = 'resume'
                          when 'failed' then v_approval.state in ('denied', 'expired') and v_approval.on_deny = 'fail' end) is not true then
        raise exception 'job %: illegal transition % -> %: its approval has no such decision', old.id, old.state, new.state
            using errcode = 'ZH001', hint = 'Decide the approval: select * from approve(…), or deny(…).';
    end if;
end $$;

-- --- approvals ---

create or replace function guard_approval_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if new.state <> 'open' or not exists (select from job_state s where s.id = new.job_id and s.tenant = new.tenant
                                             and s.state = 'waiting_for_approval' and s.approval_id = new.id) then
        raise exception 'approval %: only the job that waits for it can open an approval', new.id using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on approval for each row execute function guard_approval_insert();

-- The largest number of people who approve the same values, by their last votes. Without a form there are no values.
create or replace function agreeing(p_approval approval) returns bigint language sql stable set search_path from current as $$
    select coalesce(max(c.people), 0) from (
        select count(*) as people from vote v
         where v.approval_id = p_approval.id and v.verdict = 'approve'
           and not exists (select from vote w where w.approval_id = v.approval_id and w.person = v.person and w.n > v.n)
         group by case when p_approval.form is not null then coalesce(v.data, '{}')::jsonb end) c
$$;

-- Whether an approval's recorded decision is justified: by votes, by time, or because its job no longer waits for it.
create or replace function is_justified(p_approval approval) returns boolean language plpgsql set search_path from current as $$
begin
    return case p_approval.state
        when 'open' then true
        when 'approved' then agreeing(p_approval) >= p_approval.quorum
                             or p_approval.on_expire = 'approve' and p_approval.expires_at <= clock_now()
        when 'denied' then exists (select from vote v where v.approval_id = p_approval.id and v.verdict = 'deny')
        when 'expired' then p_approval.on_expire = 'deny' and p_approval.expires_at <= clock_now()
        when 'withdrawn' then pg_trigger_depth() > 1   -- written by approvals_on_transition: the job has left the state
                              or not exists (select from job_state s where s.id = p_approval.job_id and s.approval_id = p_approval.id)
    end;
end $$;

create or replace function guard_approval_update() returns trigger language plpgsql set search_path from current as $$
begin
    if old.state <> 'open'
       or (old.id, old.tenant, old.job_id, old.n, old.name, old.summary, old.data::text, old.form::text, old.approvers, old.quorum,
           old.requester, old.not_requester, old.token_only, old.on_deny, old.on_expire, old.expires_in, old.remind_every, old.escalate_to,
           old.notify, old.content_hash, old.opened_at)
          is distinct from
          (new.id, new.tenant, new.job_id, new.n, new.name, new.summary, new.data::text, new.form::text, new.approvers, new.quorum,
           new.requester, new.not_requester, new.token_only, new.on_deny, new.on_expire, new.expires_in, new.remind_every, new.escalate_to,
           new.notify, new.content_hash, new.opened_at) then
        raise exception 'approval %: the request and a closed approval never change', old.id using errcode = 'ZH002';
    elsif new.expires_at is distinct from old.expires_at and (old.on_expire <> 'remind' or new.expires_at < old.expires_at)
       or new.escalated_at is distinct from old.escalated_at
          and (old.escalated_at is not null or (old.escalate_at <= clock_now()) is not true) then
        raise exception 'approval %: its times cannot differ from the request', old.id using errcode = 'ZH002';
    elsif not coalesce(is_justified(new), false) then
        raise exception 'approval %: illegal transition open -> %: the votes do not justify it', old.id, new.state
            using errcode = 'ZH001', hint = 'Decide it: select * from approve(…), or deny(…).';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on approval for each row execute function guard_approval_update();

-- --- votes and tokens ---

create or replace function guard_vote_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if not exists (
        select from approval g join job_state s on s.id = g.job_id and s.approval_id = g.id
         where g.id = new.approval_id and g.tenant = new.tenant and g.state = 'open'
           and (g.on_expire = 'remind' or g.expires_at is null or g.expires_at > new.at)
           and (g.approvers = '{}' or new.person = any (g.approvers)
                or g.escalated_at is not null and new.person = any (g.escalate_to))
           and not (g.not_requester and new.person = g.requester)
           -- decide_approval has marked the token as used at the same time.
           and (not g.token_only or exists (select from approval_token t where t.approval_id = g.id and t.used_at = new.at
                                               and coalesce(t.person, new.person) = new.person))
           and new.n = 1 + (select count(*) from vote v where v.approval_id = g.id)
           and (g.form is not null or not exists (select from vote v where v.approval_id = g.id and v.person = new.person))) then
        raise exception 'approval %: only approvers can vote, once each, while it is open', new.approval_id
            using errcode = 'ZH002', hint = 'Where an approval has a form, a person may vote again with other values.';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on vote for each row execute function guard_vote_insert();

create or replace function guard_token_insert() returns trigger language plpgsql set search_path from current as $$
begin
    if new.used_at is not null or not exists (select from approval g where g.id = new.approval_id and g.tenant = new.tenant and g.state = 'open') then
        raise exception 'approval_token: a token must be issued unused and for an open approval' using errcode = 'ZH002';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on approval_token for each row execute function guard_token_insert();

create or replace function guard_token_update() returns trigger language plpgsql as $$
begin
    raise exception 'approval_token: a token can be marked as used once and never changed otherwise' using errcode = 'ZH002';
end $$;
create or replace trigger guard_update before update on approval_token for each row
    when (old.used_at is not null or new.used_at is null or old.hash <> new.hash or old.approval_id <> new.approval_id
          or old.person is distinct from new.person or old.tenant <> new.tenant
          or old.issued_by <> new.issued_by or old.issued_at <> new.issued_at
          or old.expires_at is distinct from new.expires_at)
    execute function guard_token_update();

-- --- deletion ---

-- Approvals: a request to people, and the effect of their decision on the job that requested it. Every writer of an approval first
-- locks the row of its job. A decision, an expiry, a cancellation and a deadline that race are serialised there, and only the
-- first of them finds the approval open. A job that leaves by cancellation or deadline withdraws its approval
-- (approvals_on_transition).

-- Enqueue a notice about an approval: a job of the kind that the requesting program named, a child of the requesting job and
-- in its queue. It contains no tokens; the notice handler has them issued.
create or replace function enqueue_notice(p_approval approval, p_what text, p_number integer, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare v_id uuid := uuid7();
begin
    if p_approval.notify is not null then
        insert into owed (job_id) values (v_id);   -- part of the request: accepted even where new jobs are refused
        insert into job (id, tenant, kind, queue, payload, parent_id, correlation_id, workflow_id, enqueued_by, source_system, created_at)
        select v_id, p_approval.tenant, p_approval.notify, j.queue,
               json_build_object('notice', json_build_object('approval_id', p_approval.id, 'what', p_what, 'number', p_number)),
               p_approval.job_id, coalesce(j.correlation_id, j.id::text), j.workflow_id, 'approval ' || p_approval.name, 'holdfast', p_now
          from job j where j.id = p_approval.job_id;
        delete from owed o where o.job_id = v_id;
    end if;
end $$;

-- Called by suspend: these jobs have just entered waiting_for_approval from their own handlers.
create or replace function approvals_on_suspend(jobs uuid[], tenants text[], details json[], p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare v_approval approval;
begin
    for v_approval in
        insert into approval as g (id, tenant, job_id, n, name, summary, data, form, approvers, quorum, requester, not_requester,
                               token_only, on_deny, on_expire, expires_in, expires_at, remind_every, remind_at, escalate_at, escalate_to,
                               notify, content_hash, opened_at)
        select a.id, o.tenant, o.id, (o.detail -> 'pause' ->> 'n')::integer, o.detail -> 'pause' ->> 'name', a.summary, a.data, a.form,
               coalesce(a.approvers, '{}'), coalesce(a.quorum, 1::smallint), j.enqueued_by, coalesce(a.not_requester, false),
               k.token_only, coalesce(a.on_deny, 'fail'),
               -- Where only a token approves, time does not.
               case when k.token_only and a.on_expire = 'approve' then 'deny' else coalesce(a.on_expire, 'deny') end,
               make_interval(secs => a.expires_in), p_now + make_interval(secs => a.expires_in),
               make_interval(secs => a.remind_every), p_now + make_interval(secs => a.remind_every),
               p_now + make_interval(secs => a.escalate_after), coalesce(a.escalate_to, '{}'), a.notify, a.content_hash, p_now
          from unnest(approvals_on_suspend.jobs, approvals_on_suspend.tenants, approvals_on_suspend.details) as o(id, tenant, detail)
         cross join lateral json_to_record(o.detail -> 'pause' -> 'approval') as a(
                   id uuid, summary text, data json, form json, approvers text[], quorum smallint, not_requester boolean, token_only boolean,
                   on_deny text, on_expire text, expires_in double precision, remind_every double precision,
                   escalate_after double precision, escalate_to text[], notify text, content_hash text)
          join job j on j.id = o.id
         cross join lateral (select coalesce(a.token_only, false) or token_required(o.tenant, j.kind) as token_only) k
         where o.detail -> 'pause' -> 'approval' is not null
        returning g.*
    loop
        perform enqueue_notice(v_approval, 'asked', 0, p_now);
    end loop;
end $$;

-- What the handler receives: the decision and every vote.
create or replace function decision_of(p_approval approval) returns json language sql stable
begin atomic
    select json_build_object('approval_id', p_approval.id, 'state', p_approval.state, 'content_hash', p_approval.content_hash,
        'decided_at', to_char(p_approval.decided_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'votes', coalesce((select json_agg(json_build_object('person', v.person, 'verdict', v.verdict, 'how', v.how,
                    'comment', v.comment, 'data', v.data,
                    'at', to_char(v.at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) order by v.n)
                    from vote v where v.approval_id = p_approval.id), '[]'::json));
end;

-- Close an open approval whose job is locked: approved, denied or expired. The job continues with the decision as its input,
-- or fails with the reason.
create or replace function close_approval(p_approval approval, p_state text, p_reason text, p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare
    v_goes_on boolean := p_state = 'approved' or p_approval.on_deny = 'resume';
    v_queue   text;
begin
    update approval g set state = p_state, decided_at = p_now where g.id = p_approval.id returning g.* into p_approval;
    update step t set value = decision_of(p_approval), ended_at = p_now
     where t.job_id = p_approval.job_id and t.n = p_approval.n and t.ended_at is null;
    update job_state s
       set state = case when v_goes_on then 'queued' else 'failed' end::state, approval_id = null,
           finished_at = case when v_goes_on then null else p_now end,
           error_code = case when v_goes_on then null when p_state = 'expired' then 'approval_expired' else 'denied' end,
           error_message = case when v_goes_on then null else p_reason end,
           note = jsonb_strip_nulls(jsonb_build_object('approval', p_approval.name, 'verdict', p_state,
                                                       'reason', case when v_goes_on then p_reason end))
     where s.id = p_approval.job_id
    returning s.queue into v_queue;
    if v_goes_on then
        perform notify_listeners(v_queue);
    end if;
end $$;

-- Record one person's decision on an approval. The approval closes when enough people have decided. Refusals are returned, not
-- raised. Where the approval has a form, approvals count together if their values are equal, and a person may vote again with
-- other values. With `token_hash` the holder of that token decides: a decision that counts uses up the token, and the token's person
-- is recorded.
create or replace function decide_approval(approval uuid, verdict text, person text, comment text default null, data json default null,
                                       how text default 'sql', token_hash text default null, for_tenant text default null)
returns table (id uuid, state text, refused boolean, reason text)
language plpgsql security definer set search_path from current as $$
declare
    v_now    timestamptz := clock_now();
    v_scope  text := enter(decide_approval.for_tenant);
    v_person text := decide_approval.person;
    v_approval   approval;
    v_job    record;
    v_token  approval_token;
    v_data   json := coalesce(decide_approval.data, '{}');   -- a form without required fields may be left empty
    v_last   vote;
    v_reason text;
begin
    perform check_isolation();   -- votes are counted under the lock on the approval
    if decide_approval.verdict is null or decide_approval.verdict not in ('approve', 'deny') then
        raise exception 'verdict must be approve or deny' using errcode = 'ZH010';
    end if;
    select g.* into v_approval from approval g where g.id = decide_approval.approval and (v_scope = '*' or g.tenant = v_scope);
    if not found then
        return query select decide_approval.approval, null::text, true, 'not_found';
        return;
    end if;
    select s.state, s.approval_id into v_job from job_state s where s.id = v_approval.job_id for update;
    select g.* into v_approval from approval g where g.id = decide_approval.approval for update;
    if decide_approval.token_hash is not null then
        select t.* into v_token from approval_token t where t.hash = decide_approval.token_hash and t.approval_id = v_approval.id for update;
        v_person := coalesce(v_token.person, v_person);
    end if;
    select v.* into v_last from vote v where v.approval_id = v_approval.id and v.person = v_person order by v.n desc limit 1;
    v_reason := case
        when v_approval.state <> 'open' then 'already_decided'
        when v_job.state is distinct from 'waiting_for_approval' or v_job.approval_id is distinct from v_approval.id then 'withdrawn'
        when v_approval.expires_at <= v_now and v_approval.on_expire <> 'remind' then 'approval_expired'
        when decide_approval.token_hash is null and v_approval.token_only then 'token_required'
        when decide_approval.token_hash is not null and v_token.hash is null then 'token_unknown'
        when v_token.used_at is not null then 'token_used'
        when v_token.expires_at <= v_now then 'token_expired'
        when coalesce(ascii(v_person), 0) <= 32 or length(v_person) > 255 then 'person_required'
        when v_approval.approvers <> '{}' and not v_person = any (v_approval.approvers
             || case when v_approval.escalated_at is not null then v_approval.escalate_to else '{}' end) then 'not_an_approver'
        when v_approval.not_requester and v_person = v_approval.requester then 'requester_may_not_decide'
        when v_last.n is not null and (v_approval.form is null or v_last.verdict = decide_approval.verdict
                                       and coalesce(v_last.data, '{}')::jsonb = v_data::jsonb) then 'already_voted'
        when decide_approval.verdict = 'approve' and v_approval.form is not null
             and not coalesce(json_typeof(v_data) = 'object' and fits_form(v_data::jsonb, v_approval.form::jsonb, v_approval.form::jsonb), false)
             then 'form_invalid'
    end;
    if v_reason is not null then
        return query select v_approval.id, v_approval.state, true, v_reason;
        return;
    end if;
    perform set_config('holdfast.actor', v_person, true);
    if v_token.hash is not null then
        update approval_token t set used_at = v_now where t.hash = v_token.hash;
    end if;
    insert into vote (approval_id, tenant, person, verdict, how, comment, data, at, n)
    values (v_approval.id, v_approval.tenant, v_person, decide_approval.verdict, decide_approval.how, decide_approval.comment, decide_approval.data, v_now,
            1 + (select count(*) from vote v where v.approval_id = v_approval.id));
    if decide_approval.verdict = 'deny' then
        perform close_approval(v_approval, 'denied', 'denied by ' || v_person || coalesce(': ' || decide_approval.comment, ''), v_now);
    elsif agreeing(v_approval) >= v_approval.quorum then
        perform close_approval(v_approval, 'approved', 'approved by ' || v_person || coalesce(': ' || decide_approval.comment, ''), v_now);
    end if;
    return query select g.id, g.state, false, null::text from approval g where g.id = v_approval.id;
end $$;

-- Approve an approval as this person, for use in psql: select * from holdfast.approve('…', 'ada@example.com', 'fine with me');
create or replace function approve(approval uuid, person text, comment text default null, data json default null, for_tenant text default null)
returns table (id uuid, state text, refused boolean, reason text)
language sql security definer set search_path from current as $$ select * from decide_approval($1, 'approve', $2, $3, $4, 'sql', null, $5) $$;

-- Deny an approval as this person. Returns its state, or why the decision was refused.
create or replace function deny(approval uuid, person text, comment text default null, for_tenant text default null)
returns table (id uuid, state text, refused boolean, reason text)
language sql security definer set search_path from current as $$ select * from decide_approval($1, 'deny', $2, $3, null, 'sql', null, $4) $$;

-- Store the hash of a token that can decide this approval. The token itself never reaches the database.
create or replace function keep_approval_token(approval uuid, hash text, person text, ttl interval default null, actor text default null,
                                           for_tenant text default null) returns text
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(keep_approval_token.for_tenant, nullif(keep_approval_token.actor, ''));
    v_approval  approval;
begin
    perform check_span('ttl', keep_approval_token.ttl);
    select g.* into v_approval from approval g where g.id = keep_approval_token.approval and (v_scope = '*' or g.tenant = v_scope);
    if not found then
        return 'not_found';
    elsif v_approval.state <> 'open' then
        return 'already_decided';
    elsif keep_approval_token.person is not null and v_approval.approvers <> '{}'
          and not keep_approval_token.person = any (v_approval.approvers || v_approval.escalate_to) then
        return 'not_an_approver';
    end if;
    insert into approval_token (hash, tenant, approval_id, person, issued_by, issued_at, expires_at)
    values (keep_approval_token.hash, v_approval.tenant, v_approval.id, keep_approval_token.person, actor(), v_now, v_now + keep_approval_token.ttl);
    return null;
end $$;

-- Process approvals that are due: reminders, escalation, expiry. Returns how many were processed. An approval whose job is
-- locked by another transaction is left for the next run.
create or replace function attend_approvals(want integer default 1000, for_tenant text default '*') returns integer
language plpgsql security definer set search_path from current
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set jit = off as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(attend_approvals.for_tenant, 'maintenance');
    v_approval  approval;
    v_job   record;
    v_count integer := 0;
begin
    if halted() then
        return 0;
    end if;
    for v_approval in
        select g.* from approval g
         where g.state = 'open' and least(g.expires_at, g.remind_at, g.escalate_at) <= v_now
           and (v_scope = '*' or g.tenant = v_scope)
         order by least(g.expires_at, g.remind_at, g.escalate_at) limit attend_approvals.want
    loop
        select s.state, s.approval_id into v_job from job_state s where s.id = v_approval.job_id for update skip locked;
        continue when not found;
        select g.* into v_approval from approval g where g.id = v_approval.id for update;
        continue when v_approval.state <> 'open';
        v_count := v_count + 1;
        if v_job.approval_id is distinct from v_approval.id then
            update approval g set state = 'withdrawn', decided_at = v_now where g.id = v_approval.id;
            continue;
        end if;
        if v_approval.escalate_at <= v_now then
            update approval g set escalated_at = v_now, escalate_at = null where g.id = v_approval.id returning g.* into v_approval;
            perform enqueue_notice(v_approval, 'escalated', v_approval.reminders, v_now);
        end if;
        if v_approval.expires_at <= v_now and v_approval.on_expire = 'remind' then
            update approval g set reminders = g.reminders + 1, expires_at = v_now + g.expires_in,
                              remind_at = v_now + g.remind_every
             where g.id = v_approval.id returning g.* into v_approval;
            perform enqueue_notice(v_approval, 'reminder', v_approval.reminders, v_now);
        elsif v_approval.expires_at <= v_now then
            perform close_approval(v_approval, case v_approval.on_expire when 'approve' then 'approved' else 'expired' end,
                               'no decision in time', v_now);
        elsif v_approval.remind_at <= v_now then
            update approval g set reminders = g.reminders + 1, remind_at = v_now + g.remind_every
             where g.id = v_approval.id returning g.* into v_approval;
            perform enqueue_notice(v_approval, 'reminder', v_approval.reminders, v_now);
        end if;
    end loop;
    return v_count;
end $$;

-- Return the hashes of an approval's tokens, for a program that compares them with a token it received.
create or replace function approval_token_hashes(approval uuid, for_tenant text default null) returns setof text
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(approval_token_hashes.for_tenant);
begin
    return query select t.hash from approval_token t
     where t.approval_id = approval_token_hashes.approval and (v_scope = '*' or t.tenant = v_scope);
end $$;

-- Return the person, expiry and use of an approval token, found by the token's hash. No row if the hash is unknown.
create or replace function approval_token_of(token_hash text, for_tenant text default null)
returns table (person text, expires_at timestamptz, used_at timestamptz)
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(approval_token_of.for_tenant);
begin
    return query select t.person, t.expires_at, t.used_at from approval_token t
     where t.hash = approval_token_of.token_hash and (v_scope = '*' or t.tenant = v_scope);
end $$;

-- Return whether this decision is the last one recorded of its person, for a caller that lost the response of decide_approval.
create or replace function has_decided(approval uuid, verdict text, person text, how text, token_hash text, data json default null,
                                for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(has_decided.for_tenant);
begin
    return exists (
        select from vote v
         where v.approval_id = has_decided.approval and (v_scope = '*' or v.tenant = v_scope) and v.verdict = has_decided.verdict and v.how = has_decided.how
           and v.person = coalesce((select t.person from approval_token t where t.hash = has_decided.token_hash), has_decided.person)
           and coalesce(v.data, '{}')::jsonb = coalesce(has_decided.data, '{}')::jsonb
           and not exists (select from vote w where w.approval_id = v.approval_id and w.person = v.person and w.n > v.n));
end $$;
