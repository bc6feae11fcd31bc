-- What a row of job or job_state must be is judged by the triggers that read the rows of each statement anyway, with
-- plans that are kept (code/20_on_job_insert.sql, 21_record_transition.sql). The text of a CHECK, and of a row trigger's
-- WHEN, is read anew for every statement: that was a third of the work of enqueueing a job and of a turn with one
-- (docs/adr/0024).
alter table job
    drop constraint kind_named, drop constraint queue_named, drop constraint tenant_named,
    drop constraint enqueued_by_named, drop constraint source_system_named, drop constraint retries_bounded,
    drop constraint crashes_bounded, drop constraint uses_named, drop constraint retry_as_known,
    drop constraint depth_counted;
alter table job_state
    drop constraint finished_iff_terminal, drop constraint error_when_failed, drop constraint due_when_retry_waiting,
    drop constraint gate_when_waiting, drop constraint lease_iff_held, drop constraint unsettled_while_held,
    drop constraint retries_within_limit, drop constraint crashes_counted, drop constraint attempt_counted;
drop trigger if exists judge_transition on job_state;
drop trigger if exists judge_waiting on job_state;
drop trigger if exists judge_release on job_state;
drop trigger if exists refuse_rerun on job_state;
drop function if exists refuse_transition();
drop function if exists judge_waiting();
drop function if exists judge_release();
drop function if exists refuse_rerun();

-- Jobs that are under the same limits: one of them, and all.
create type alike as (sample tid, jobs uuid[]);
