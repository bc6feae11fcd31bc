-- What happened, told from the row alone, so that a step taken by hand is named as well as one of ours.
create or replace function verb_of(was state, now_is state, error_code text, note jsonb) returns text
language sql immutable
return case now_is
    when 'in_progress' then case was when 'queued' then 'take' else 'start' end
    when 'succeeded' then 'succeed'
    when 'leased' then 'claim'
    when 'failed' then case was
        when 'in_progress' then case error_code when 'worker_lost' then 'lapse' when 'process_died' then 'crash' else 'fail' end
        when 'waiting_for_approval' then case when error_code in ('deadline_passed', 'gate_expired') then 'expire' else 'deny' end
        else 'expire' end
    when 'retry_waiting' then case was when 'failed' then 'retry' when 'retry_waiting' then 'move' else 'snooze' end
    when 'queued' then case was
        when 'leased' then case when note ->> 'reason' = 'lease_lapsed' then 'lapse' else 'release' end
        when 'retry_waiting' then case when note ? 'rescheduled' then 'reschedule' else 'due' end
        when 'queued' then case when note ? 'moved' then 'move' else 'reschedule' end
        when 'dead_letter' then 'redrive'
        else case note ->> 'verdict' when 'denied' then 'deny' when 'expired' then 'expire' else 'approve' end end
    when 'dead_letter' then 'bury'
    when 'cancelled' then case was when 'dead_letter' then 'discard' else 'cancel' end
    when 'waiting_for_approval' then 'ask'
    when 'cleaned' then 'clean'
end;
