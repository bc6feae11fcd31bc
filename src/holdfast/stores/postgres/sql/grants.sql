-- Privileges of the roles, as far as they exist.
do $$
declare
    v_schema  text := current_schema();
    v_reads   text[] := array['get_job', 'list_jobs', 'history', 'health', 'events_after', 'events_gone', 'app_events_after', 'chain', 'circumstances', 'liveness', 'list_workers', 'running_versions',
                              'active_subscriptions', 'scope', 'pinned_tenant', 'caller', 'actor', 'clock_now', 'enter', 'legal', 'event_type', 'uuid7',
                              'watch_job', 'list_limits', 'halted', 'preview_retention', 'retention_for', 'shape', 'fingerprint',
                              'seals_of', 'fair_queues', 'registered_only', 'turn_of', 'shown_payload', 'attempt_payload', 'hides', 'withheld',
                              'payload_indexes', 'jobs_by_payload', 'lock_waits', 'lock_holders', 'signal_key', 'token_of', 'token_used', 'open_session', 'end_session',   -- each needs the hash of a token
                              'refusal_reason', 'policies', 'current_base', 'ledger_base', 'ledger_position', 'ledger_snapshot', 'origin'];
    v_produce text[] := array['enqueue', 'enqueue_many', 'enqueue_alike', 'enqueue_one', 'cancel', 'cancel_many', 'send_event', 'enqueue_made',
                              'start_workflow', 'add_to_workflow', 'cancel_workflow'];
    v_execute text[] := array['every_tenant', 'open_lease', 'open_worker', 'offer_held', 'heartbeat', 'renew_lease', 'renew', 'end_lease', 'claim', 'claim_many', 'exchange', 'cancellations', 'holdings', 'start_many',
                              'release', 'release_many', 'settle_many', 'succeed', 'fail', 'progress', 'save_checkpoint', 'note_upload',
                              'add_artifact', 'append_log', 'due_work', 'promote_due', 'expire_overdue', 'recover_leases', 'quarantine', 'backoff_delay',
                              'enqueue', 'enqueue_many', 'enqueue_alike', 'enqueue_one', 'save_cursor', 'seal_ledger', 'enqueued_payloads', 'save_steps', 'send_event', 'attend_approvals',
                              'keep_approval_token', 'enqueue_made', 'fire_schedules', 'declare_schedules', 'add_schedule', 'change_schedule',
                              'start_workflow', 'add_to_workflow', 'fire_callbacks', 'attend_limits', 'wake_limited', 'age_queues', 'reserve', 'release_reservation', 'record_reservation',
                              'save_subscription', 'hold_subscription', 'delivered', 'advance_subscription', 'subscription_failed',
                              'sweep_retention', 'declare_retention', 'unarchived', 'archive_rows', 'record_archive', 'count_usage', 'orphans', 'forget_orphans',
                              'next_operation', 'hold_operation', 'do_operation', 'declare_payload_rules', 'note_webhook_delivery', 'disable_webhook'];
    v_approve text[] := array['decide_approval', 'approve', 'deny', 'approval_token_hashes', 'approval_token_of', 'keep_approval_token', 'has_decided'];
    v_admin   text[] := array['redrive', 'redrive_many', 'discard', 'discard_many', 'reschedule', 'reschedule_many', 'move', 'rewind', 'fork_steps',
                              'set_agent', 'disable_agent', 'drain_agent', 'enable_agent', 'resume_agent',
                              'put_template', 'run_schedule', 'resume_workflow', 'set_limit', 'remove_limit', 'set_aging',
                              'pause_subscription', 'resume_subscription', 'delete_subscription', 'reset_consumer', 'remove_consumer',
                              'set_executor', 'remove_executor', 'request_stop', 'pause', 'resume', 'set_tenant', 'remove_tenant', 'pin_login', 'unpin_login', 'set_fair',
                              'set_retention', 'delete_retention', 'find_orphans', 'set_registered_only',
                              'note_dead_letters', 'start_operation', 'cancel_operation', 'redrive_as', 'replace_payload', 'set_external_ref',
                              'set_payload_rule', 'remove_payload_rule', 'sealed_payloads', 'reseal', 'sealed_parts', 'reseal_part',
                              'issue_token', 'revoke_token',
                              'add_webhook', 'change_webhook', 'enable_webhook', 'remove_webhook',
                              'set_connector', 'remove_connector',
                              'move_version', 'unread_events', 'adopt_copy', 'register_kinds', 'remove_kind', 'set_event_type', 'remove_event_type', 'set_policies'];
    v_routine record;
    v_role    text;
begin
    execute format('revoke all on schema %I from public', v_schema);
    execute format('revoke all on all tables in schema %I from public', v_schema);
    for v_routine in
        select p.oid::regprocedure as signature, p.proname as name
          from pg_proc p where p.pronamespace = v_schema::regnamespace
    loop
        execute format('revoke all on function %s from public', v_routine.signature);
        foreach v_role in array array['holdfast_viewer', 'holdfast_producer', 'holdfast_executor', 'holdfast_approver', 'holdfast_admin'] loop
            continue when not exists (select from pg_roles where rolname = v_role);
            if v_routine.name = any (v_reads)
               or v_role = 'holdfast_producer' and v_routine.name = any (v_produce)
               or v_role = 'holdfast_executor' and v_routine.name = any (v_execute)
               or v_role = 'holdfast_approver' and v_routine.name = any (v_approve)
               or v_role = 'holdfast_admin' and v_routine.name = any (v_produce || v_execute || v_approve || v_admin) then
                execute format('grant execute on function %s to %I', v_routine.signature, v_role);
            end if;
        end loop;
    end loop;
    foreach v_role in array array['holdfast_viewer', 'holdfast_producer', 'holdfast_executor', 'holdfast_approver', 'holdfast_admin'] loop
        continue when not exists (select from pg_roles where rolname = v_role);
        execute format('grant usage on schema %I to %I', v_schema, v_role);
        -- Every column of a job except its payload, which may be restricted: `jobs` and shown_payload() return it where it is
        -- not.
        execute format('revoke select on job from %I', v_role);
        execute format('grant select (%s) on job to %I', (
            select string_agg(quote_ident(a.attname), ', ') from pg_attribute a
             where a.attrelid = 'job'::regclass and a.attnum > 0 and not a.attisdropped and a.attname <> 'payload'), v_role);
        execute format('grant select on job_tag, agent, event, result, checkpoint, artifact, attempt_log, consumer, clock, migration, jobs, attempts, present,'
            ' backlog, in_progress, dead_letter_open,'
            ' step, app_event, approval, vote, template, schedule, fire, made_from, workflow, node, dependency,'
            ' job_limit, reservation, queue_setting, subscription, delivery, executor, pause, tenant,'
            ' retention, retention_pass, archive, archived, event_partition, usage, usage_place, upkeep, action, orphaned_file,'
            ' dead_letter, dead_letter_group, operation, redriven_as, payload_rule, reference, resealed, webhook, webhook_delivery,'
            ' connector, ledger_epoch, quarantine, registered_kind, registered_event, unregistered_name to %I', v_role);
        execute format('grant select (job_id, tenant, attempt, at) on replaced_payload to %I', v_role);   -- attempt_payload() shows the payloads
        execute format('grant select on sequence event_seq, app_event_seq to %I', v_role);
        -- Every column of a callback except the job that it creates, whose payload may be restricted.
        execute format('grant select (job_id, tenant, workflow_id, step_id, fires, due_at, fired_at, failed_job, error_code, error_message)'
            ' on callback to %I', v_role);
        execute format('grant select (tenant, kind, key, job_id) on idempotency to %I', v_role);   -- lists by key
        -- Every role may see that a seal exists; its content is for roles that may read every tenant's events.
        execute format('grant select (number, tenant, previous, digest, event_count, action_count, sealed_at, version) on seal to %I', v_role);
        if v_role in ('holdfast_executor', 'holdfast_admin') then
            execute format('grant select on seal to %I', v_role);
        end if;
        if v_role = 'holdfast_admin' then   -- the tokens without their hashes, and the pinned logins
            execute format('grant select on login_pin to %I', v_role);
            execute format('grant select (id, tenant, name, roles, scopes, prefix, parent_id, created_at, created_by, expires_at,'
                ' last_used_at, revoked_at, revoked_by) on api_token to %I', v_role);
        end if;
        -- Every column except the lease tokens.
        execute format('grant select (id, tenant, kind, queue, state, priority, position, attempt, retries, crashes, max_attempts,'
            ' max_crashes, due_at, deadline_at, approval_id, started_at, finished_at, error_code, error_message, note, agent, workflow_id,'
            ' held_by, executor) on job_state to %I', v_role);
        execute format('grant select (tenant, name, holder, until, opened_at, renewed_at, renewals, ended_at, ended_why, kinds, queues, slots, version, app_version, code, pins, stop_request,'
            ' stop_requested_at, stop_requested_by) on lease to %I', v_role);
    end loop;
end $$;
