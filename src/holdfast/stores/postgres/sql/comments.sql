-- Comments on every table and column, for readers of the schema in psql or another tool. A line that begins with a table's
-- name is its comment; the indented lines below it are those of its columns. Columns that mean the same everywhere are listed
-- once, under `*`. tests/contract/test_catalogue.py fails when a table or a column has none.
do $do$
declare
    v_lines  text[] := string_to_array($comments$
*
  id                Unique id, a UUIDv7: ids sort by creation.
  tenant            Tenant that the row belongs to; * stands for every tenant.
  job_id            Job that the row belongs to.
  kind              Kind of job.
  queue             Queue of the job.
  name              Name, unique within its tenant.
  created_at        When the row was created.
  created_by        Who created it.
  updated_at        When it was last changed.
  updated_by        Who changed it last.
  set_by            Who set it last.
  at                When it happened.
  actor             Who did it.
  attempt           Number of the attempt, from 1.
  n                 Position of the durable call in its handler, from 1; 0 is the approval before the handler.
  xid               Transaction that wrote the row.
  disabled_at       When it was disabled; null while it is enabled.
  disabled_by       Who disabled it.
  disabled_reason   Why it was disabled.
  error_code        Stable code of the error.
  error_message     Message of the error.
  agent             Agent that owns the job: a named owner, not an AI agent.
  correlation_id    Id that ties jobs of one business case together.
  workflow_id       Workflow that the job belongs to.
  approval_id       Approval that the row belongs to.
  enqueued_by       Who enqueued it.
  source_system     Program or service that enqueued it.
  max_attempts      Maximum number of attempts, the first included; 1 to 101.
  max_crashes       Number of lost workers or processes before the job becomes a dead letter.
  backoff           Delay between retries: base, factor, cap and jitter, in seconds.
  priority          Higher runs first.
  deadline_at       A job that has not started by then fails with deadline_passed.
  expires_at        When it expires; null: never.
  finished_at       When it ended; null before.
  started_at        When it started.
  reason            Why, as the operator gave it.
  declared_by       Program whose code declares it; null or empty: an operator set it.
  job_options       Options of the jobs it makes, as JSON: queue, priority, retry and so on.
  options           Options of the jobs it makes, as JSON: queue, priority, retry and so on.
  version           Release of Holdfast that wrote the row.
  held              Never set: the table is only locked.
  executor          Label of the workers that may run the job; null: any.
  description       Description for people.
  set_at            When it was set.
job Facts of a job. Written once and never changed, except by retention, re-encryption and audited replacement.
  payload           Arguments of the handler, as the JSON text that was sent.
  run_at            Earliest start that the producer requested.
  idempotency_key   Enqueueing again with the same tenant, kind and key returns this job.
  content_key       Hash of kind, tenant and payload, for deduplication by content.
  tags              Tags, also in job_tag.
  causation_id      Event or request that caused the job.
  parent_id         Job whose handler enqueued this one.
  external_ref      Id of the same work in another system; not checked.
  created_at        When it was enqueued, by the database's clock.
  uses              What it counts against besides queue and kind, such as key:customer-7 or resource:gpu-0.
  retry_as          new_job: a retry is a new job that names this one in retry_of.
  retry_of          Failed job that this one retries.
  depth             Number of subscriptions between this job and the first event of its chain.
job_tag Tags of jobs, their labels with any value, and their limit keys, for listing by them.
  tag               One tag.
job_state Current state of a job: the one row per job that changes. Triggers check each change and write it to event.
  id                Id of the job.
  state             State; see docs/reference/states.md.
  position          Order among jobs of the same queue and priority; lower runs first.
  attempt           Number of attempts that have started.
  retries           Number of failures that were given another attempt.
  crashes           Number of lost workers or processes.
  due_at            Cannot be claimed before; null: can be claimed now, or is not waiting.
  lease             Lease that holds the job; null unless leased or in progress.
  settled_by        Lease that ended the last attempt.
  approval_id       Approval that the job waits for.
  started_at        When the last attempt started.
  note              Context of the last transition, copied into its event.
  held_by           Full limit that the job waits for.
event The ledger: one row per transition, written by triggers, never changed. Read it in commit order with read_events.
  seq               Number of the event. Numbers can become visible out of order; read_events handles that.
  type              What happened: enqueue, take, succeed, fail and so on.
  from_state        State before; null for enqueue.
  to_state          State after.
  meta              Context: error, retry time, reason, approval.
event_partition Partitions of event, by the time in the job's id.
  name              Name of the partition.
  low               Smallest job id in it.
  high              First job id after it.
  check_at          When maintenance considers it for removal again.
  announced         Action that announces its removal; null: none.
idempotency Idempotency keys and the job that each of them returned.
  key               The key.
  payload_hash      SHA-256 of the payload; another payload under the same key is a conflict.
content Last job enqueued for each content key.
  key               The content key.
result Result of a succeeded job.
  value             Result as JSON text; null if it is stored elsewhere.
  ref               Reference to a result in the artifact store.
checkpoint Progress that a handler saved, by name; the next attempt starts from it.
  value             What was saved, as JSON text.
  saved_at          When it was saved.
  saves             How often it was saved in this attempt.
artifact Files that attempts produced.
  ref               Where the file is.
  meta              Size, content type and other facts.
attempt_log Log of an attempt, in parts: lines that the handler wrote, or a reference to the output of a program.
  n                 Number of the part, from 1.
  at                When the part was written.
  lines             Lines of text.
  ref               Where the output is.
lease Leases of workers. A running job belongs to a lease; when it expires, other workers take the job over.
  name              Label of the worker.
  holder            Host, process id and start of the worker.
  until             When the lease expires unless it is renewed.
  opened_at         When the worker started.
  renewed_at        Last heartbeat.
  renewals          Number of heartbeats.
  ended_at          When it ended; null while it is alive.
  ended_why         Why it ended.
  swept_at          When the last of its jobs was taken over.
  kinds             Kinds that the worker has handlers for; null: unknown.
  queues            Queues that it serves; null: unknown.
  slots             Number of jobs it runs at a time; null: unknown.
  version           Release of Holdfast that the worker runs.
  stop_request      drain or stop: an operator requests that the worker stops.
  stop_requested_at When the operator requested it.
  stop_requested_by Who requested it.
recall Number of jobs that were cancelled under a lease, so that its worker checks them.
  lease             The lease.
  times             How often.
watch Jobs whose end a caller waits for; a notification is sent for these only.
  until             When the caller stops waiting.
dispatch One row of switches that a claim and an enqueue read first.
  id                Always true: there is one row.
  limited           Whether there are limits or reservations.
  swept             Where the last pass over parked jobs ended.
  ruled             Whether an enqueue must check payload rules, caps or pauses.
  capped            Whether a tenant has a cap on waiting jobs.
  fair              Queues that tenants share fairly; * is all.
  fair_auto         Whether queues are shared once a second tenant has jobs.
  registered        Whether only registered tenants may have jobs.
  signal_key        Key of the hashes that are sent as notifications.
  payload_salt      Salt of the hashes by which payloads are searched.
  unknown_kinds     What happens with kinds that are not registered: accept, warn or refuse.
  unknown_agents    The same for agents.
  unknown_events    The same for event types.
  listed_only       Whether only listed executors may claim while the list is empty.
  tenant_required   Whether jobs without a tenant are refused.
  required          Facts that jobs must have, by tenant or kind.
  running_counts    Whether running jobs count against a tenant's cap.
quarantine Jobs that the database refuses to move; claims skip them for a while.
  why               Message of the database.
  until             When it is tried again.
step Durable calls of handlers: steps, sleeps, waits for events, approvals.
  kind              step, sleep, event, approval or patch.
  name              Name of the call in its handler.
  value             Recorded result, as JSON text.
  error             Recorded error, as JSON: type and message.
  tries             How often it was tried.
  wake_at           When the sleep ends, the wait is given up, or the step is tried again.
  ended_at          When it was recorded as done; null before.
  shape             Of a wait: the keys that the event must have.
  wanted            Of a wait: the values of those keys.
app_event Events that applications send and jobs wait for.
  data              Contents of the event, a JSON object.
  key               Sent twice with the same key, it is one event.
  job_id            Job that it is meant for; null: any.
  sent_by           Who sent it.
  sent_at           When it was sent.
  seq               Number, for reading in commit order.
  cause_id          Job whose handler sent it.
unsure_wait Waits that began while an event may have been committing; they are checked again.
  since             Events from this time on count.
  bound             Transactions from this one on have seen the wait.
  check_at          When it is checked again.
owed Jobs that the database makes itself, while they are being inserted; otherwise empty.
clock Clock of the schema; tests shift or stop it.
  id                Always true: there is one row.
  shift             Added to the server's time.
  stopped           Fixed time; null: the clock runs.
migration Migrations that were applied, and the digest of the installed code.
  name              Name of the migration or code file.
  digest            SHA-256 of its text.
  applied_at        When it was applied.
mutex Rows that are locked one at a time; never changed.
  n                 Number of the lock; see locks.sql.
agent Registered agents: named owners of jobs with their defaults.
  id                Id that jobs name.
  name              Name for people.
  kind              Only kind that its jobs may have; null: any.
  max_payload_bytes Largest payload of its jobs.
  max_wait          Seconds that its jobs may wait to be started.
  requires_approval Whether its jobs need an approval before they start.
registered_kind Kinds of jobs that the deployment knows.
  name              The kind.
  domain            Domain that it and its jobs belong to.
registered_event Event types that the deployment knows.
  name              The event type.
  domain            Domain that it belongs to.
  schema            JSON schema of its data.
unregistered_name Names that were accepted with a warning.
  registry          kind, agent or event type.
  name              The name.
  first_at          When it was first used.
executor Labels of workers that may claim jobs, or that may only generate work.
  label             Label of the worker.
  role              executor: may claim; generator: may not.
  added_by          Who added it.
  added_at          When it was added.
approval Requests for approval; the job that needs it waits.
  name              Name of the approval in its handler.
  summary           Question that people read.
  data              Facts for the decision, as JSON.
  form              JSON schema of the data of a decision.
  approvers         Who may decide; empty: anyone.
  quorum            Number of approvals that are needed.
  requester         Who requested it.
  not_requester     Whether the requester may not approve.
  token_only        Whether only the holder of a token can decide it.
  on_deny           fail: the job fails; resume: the handler gets the denial.
  on_expire         deny, approve or remind.
  expires_in        Time to decide.
  remind_every      Time between reminders.
  remind_at         Next reminder.
  reminders         Number of reminders sent.
  escalate_at       When it is escalated to more people.
  escalate_to       People that it is escalated to.
  escalated_at      When it was escalated.
  notify            Kind of job that notifies people.
  content_hash      SHA-256 of the question; tokens are bound to it.
  state             open, approved, denied, expired or withdrawn.
  opened_at         When it was requested.
  decided_at        When it was decided.
vote Decisions of people. The last vote of a person counts.
  person            Who decided.
  verdict           approve or deny.
  how               How: by token, command line, HTTP or dashboard.
  comment           Comment of the person.
  data              Answers to the form, as JSON. Approvals count together if they are equal.
  n                 Number of the vote on its approval.
approval_token Tokens with which an approval can be decided once; only hashes are stored.
  hash              SHA-256 of the token.
  person            Person it was issued for; null: the holder gives a name.
  issued_by         Who issued it.
  issued_at         When it was issued.
  used_at           When it was used.
connector Settings of connectors by tenant; secrets by name only.
  enabled           Whether jobs may use it.
  hosts             Hosts it may reach; empty: all that the egress rules allow.
  headers           Headers added to requests; a value is text or the name of a secret.
  secrets           Names of secrets that jobs may use.
  timeout           Seconds for a request.
  max_bytes         Largest response.
webhook Receivers of events over HTTP.
  url               Where messages are posted.
  secrets           Names of the signing secrets, newest first.
  wants             Event types that it receives.
  kind              Kind of jobs whose events it receives; null: any.
webhook_delivery Result of each attempt to deliver a message; the newest thousand per webhook, for a month.
  webhook_id        The webhook.
  message           Id of the message, the same in every attempt.
  type              Event type.
  status            HTTP status of the answer; null: none.
  duration_ms       How long it took.
  excerpt           Beginning of the answer, redacted.
job_limit Concurrency and rate limits.
  scope             all, queue, kind, key, resource, agent or tenant.
  name              Which queue, kind and so on; *: each one separately.
  concurrency       Maximum number of jobs running at a time.
  rate              Maximum starts per period.
  per               Length of the period in seconds.
  burst             Starts that may happen at once after a pause.
occupied_slot Jobs that occupy a concurrency limit.
  scope             Scope of the limit.
  name              Name within the scope.
rate_meter Remaining starts of a rate limit; a limit without a row is full.
  scope             Scope of the limit.
  name              Name within the scope.
  tokens            Starts that are left.
  at                When they were counted.
  wake_at           When the next waiting job may start.
reservation Exclusive use of a queue or resource; no job starts in its scope meanwhile.
  scope             all, queue or resource.
  name              Which queue or resource.
  state             waiting, active, released, expired or withdrawn.
  holder            Who holds it.
  asked_at          When it was requested.
  reserved_at       When it became active.
  ended_at          When it ended.
  ended_by          Who ended it.
  ended_why         Why it ended.
queue_setting Settings of queues: waiting raises the priority of a job.
  aging             Seconds of waiting for one step.
  aging_step        How much one step adds to the priority.
  aging_most        Highest priority that waiting can reach.
pause Pauses of everything, a queue, a kind or an agent. Resuming deletes the row.
  scope             all, queue, kind or agent.
  name              Which one; * for all.
  refuse_enqueue    Whether new jobs are refused too.
  since             When it began.
  until             When it ends by itself; null: when someone resumes.
template Stored job definitions, one row per version; rows never change.
  version           Number of the version.
  payload           Default arguments.
  removed           Whether this version removes the template.
schedule When jobs are created by time.
  state             active, paused or deleted.
  timing            Cron expression, interval or time.
  zone              Time zone.
  template          Template of the jobs.
  payload           Arguments of the jobs.
  missed            What happens with missed times: skip, once or all.
  overlap           What happens while the last job runs: allow, skip or queue.
  jitter            Random delay in seconds.
  declared_hash     Hash of what the code said last.
  undeclared_at     Since when the code no longer declares it.
  revision          Increases with each change.
  anchor_at         What an interval counts from.
  next_fire_at      Next time.
  attend_at         When a worker must look at it next; null: never.
  last_fire_at      Last time that fired.
  problem           Why it cannot fire.
fire Result of each time of a schedule, exactly one per time.
  schedule_id       The schedule.
  due_at            Time it was due.
  manual            Whether a person ran it.
  status            What came of it: a job, skipped, missed or refused.
  count             Number of missed times that the row stands for.
  since_at          First of them.
  ended             Whether its job has ended.
made_from Template, schedule and time that a job was made from.
  template          Name of the template.
  template_version  Version of the template.
  schedule_id       The schedule.
  schedule          Name of the schedule.
  due_at            Time of the schedule.
consumer Positions of consumers in the ledger.
  cursor            Position after the last event that was read.
subscription Which events create which jobs.
  pattern           Event type, or name of an application event; * matches anything.
  kind              Kind of the job whose event it is; null: any.
  match             Values that the event must have.
  job_kind          Kind of the jobs it creates.
  max_depth         Longest chain of subscriptions.
  cursor            Position after the last event that was read; null: the beginning.
  declared          Whether a program declares it.
  paused_at         When it was paused.
  paused_by         Who paused it.
  paused_reason     Why it was paused.
  failure           Why the last pass failed.
  failed_at         When it failed.
  made              Number of jobs created.
  refused           Number of jobs refused.
delivery Result of each event that a subscription wanted: a job or a refusal.
  subscription_id   The subscription.
  event             Number in the ledger, or id of an application event.
  refusal           Why no job was created.
  depth             Length of the chain of subscriptions.
tenant Registered tenants with their quotas.
  tenant            Name of the tenant.
  title             Name for people.
  max_pending       Maximum number of waiting jobs.
  weight            Share in queues that tenants share fairly; null: 1.
tenant_load Number of waiting jobs of tenants with a cap.
  pending           Number of waiting jobs when they were counted.
  counted_at        When they were counted.
pending_change Changes of that number since.
  change            Added to the number.
fair_place Which tenant was served last in a queue that tenants share fairly.
  kinds             Kinds of the claim; empty: any.
  last              Tenant served last.
  left_over         What was left of its share.
login_pin Database logins that may act for one tenant only.
  login             The login.
  tenant            The only tenant it may act for.
api_token API tokens and dashboard sessions; only hashes are stored.
  name              Name that the ledger records.
  roles             Roles of the token.
  scopes            Scopes it is restricted to; empty: all that its roles allow.
  hash              SHA-256 of the token.
  prefix            Beginning of the token, to recognise it.
  parent_id         Of a session: the token it was opened with.
  last_used_at      When it was last used, to the minute.
  revoked_at        When it was revoked.
  revoked_by        Who revoked it.
workflow Workflows with the counts of their jobs.
  kind              Kind of workflow.
  generator         Who planned it; a generator never executes jobs.
  on_failure        stop, continue or skip.
  key               Started twice with the same key, it is one workflow.
  plan_hash         Hash of the plan.
  parent_id         Job that started it.
  cancelled_at      When it was cancelled.
  stopped           Whether a failure holds back the waiting jobs.
  total             Number of jobs.
  open              Number of jobs that have not ended.
  succeeded         Number of jobs that succeeded.
  failed            Number of jobs that failed.
  dead              Number of dead letters, which can be redriven.
  cancelled         Number of cancelled jobs.
  skipped           Number of skipped jobs.
node A job in its workflow.
  name              Name of the step; null: enqueued by one of the workflow's jobs.
  part              Group or sub-workflow that it is in.
  standing          open, succeeded, failed, dead, cancelled or skipped.
  unmet             Number of jobs that it still waits for.
  fatal             Whether its failure stops the workflow.
  stops             Whether it has stopped the workflow.
dependency Which job of a workflow waits for which.
  child             Job that waits.
  parent            Job that it waits for.
  on_failure        What a failure of the parent means: stop, continue or skip.
  met               Whether the child no longer waits for it.
callback Jobs to create when a workflow or one of its jobs ends.
  job_id            Id that the job will have.
  step_id           Job whose end it waits for; null: the workflow's end.
  fires             success or failure.
  document          Definition of the job; null once it is created.
  due_at            Since when it is to be created.
  fired_at          When it was created.
  failed_job        Of a failure: the job that failed.
action Changes of the configuration: the ledger of everything that is not a job.
  seq               Number of the action.
  type              set, remove, purge and so on.
  subject           What was changed: limit, agent, schedule and so on.
  name              Which one.
  changed           Columns with their values, or with the values before and after.
  first_seq         Of a purge: smallest number of the events that were removed.
  last_seq          Of a purge: greatest number of them.
seal Sealed blocks of the ledger: each contains the hash of the one before.
  number            Number of the block.
  previous          Digest of the block before.
  digest            Digest of this block.
  events            For each event its number in 8 bytes and its digest in 32.
  actions           The same for actions.
  event_count       Number of events.
  action_count      Number of actions.
  first_seq         Smallest number of its events.
  last_seq          Greatest number of its events.
  floor             Every event up to this number that the snapshot sees is sealed.
  action_floor      The same for actions.
  base              Numbers up to this one were sealed on another server.
  snapshot          Transactions that were visible.
  sealed_at         When it was sealed.
  contents          Digests of payloads and results, by the event that brought them.
  cut               Whether there was more to seal.
dead_letter_group Dead letters with the same cause.
  fingerprint       Hash of kind, error code and place in the code.
  error_message     Message of the sample.
  frame             Place in the user's code, as module:function.
  sample_job        Job that failed last.
  first_at          First failure.
  last_at           Last failure.
  times             Number of failures.
  open              Number of them that are not resolved.
  note              Note of an operator.
  noted_by          Who wrote the note.
  noted_at          When it was written.
  last_job          Job that changed the counts last.
dead_letter Open dead letters and the group of each.
  fingerprint       Its group.
  buried_at         When it became a dead letter.
operation Operations on many jobs; workers carry them out in batches.
  action            cancel, redrive or discard.
  wanted            Filter of the jobs, as JSON.
  rate              Maximum number of jobs per second.
  state             running, done or cancelled.
  total             Number of jobs when it began.
  capped            Whether there were more than were counted.
  done              Number of jobs that were changed.
  refused           Number of jobs that refused.
  refusals          Number of refusals by reason.
  place             Last job that was read; jobs are read by id, newest first.
  next_at           When the next batch may run.
  cancelled_by      Who cancelled it.
  cancelled_reason  Why it was cancelled.
  run_at            Earliest start of the redriven jobs.
redriven_as Dead letters that were redriven with another payload.
  new_id            The new job.
  by                Who did it.
payload_rule Rules for payloads by tenant and kind.
  signal_only       Whether forbidden keys are refused at any depth.
  forbidden         Forbidden keys, in lower case.
  classification    safe_metadata or restricted.
  max_bytes         Largest payload.
  max_result_bytes  Largest result.
  store             Whether larger values go to the artifact store.
  replaceable       Whether the payload of a waiting job may be replaced.
  requires_approval Options of the approval that its jobs need before they run, as JSON.
  token_only        Whether only tokens decide the approvals of its jobs.
  at_most_once      Whether its jobs start at most once.
reference References of a job to data elsewhere.
  source_ref        URI of the input.
  target_ref        URI of the output.
  payload_ref       URI of the payload.
resealed Values that were encrypted again with another key.
  n                 Number of the re-encryption.
  from_key          Key before.
  to_key            Key after.
replaced_payload Payloads that were replaced after attempts had run with them.
  attempt           Last attempt that ran with the payload.
  payload           Payload as JSON text.
  at                When it was replaced.
retention How long finished jobs are kept, by tenant, kind and state.
  state             State that the rule is for.
  clean_after       When contents are removed.
  purge_after       When the job and its events are removed.
  archive           Whether jobs stay until they are archived.
  declared          Whether a program declares it.
archive Files of finished jobs in the artifact store.
  ref               Reference of the file, with its SHA-256.
  bytes             Size of the file.
  jobs              Number of jobs in it.
  first_job         Lowest id of its jobs.
  last_job          Highest id of its jobs.
  seal              Newest seal of the ledger when it was recorded.
  seal_digest       Digest of that seal.
archived The archive of each job that is not purged yet.
  archive_id        The archive.
retention_pass Progress of retention.
  state             State that is being removed.
  action            clean or purge.
  reached           Last job that was read.
  looked            Number of jobs read since it started at the first job.
  again_at          When the next pass begins.
  restart_at        When a pass starts over.
  held              Number of jobs that had to stay.
  held_by           Why they had to stay.
upkeep One row: when maintenance prunes small tables next.
  id                Always true: there is one row.
  prune_at          When.
usage Daily sums by tenant and kind.
  day               Day in UTC.
  enqueued          Number of jobs enqueued.
  started           Number of attempts started.
  succeeded         Number of jobs that succeeded.
  failed            Number of attempts that failed.
  crashed           Number of attempts lost with their worker.
  dead              Number of dead letters.
  cancelled         Number of cancelled jobs.
  expired           Number of jobs past their deadline.
  run_time          Seconds of run time.
  wait_time         Seconds of waiting.
  cost              Cost units that handlers reported.
usage_place How far the sums have been counted.
  id                Always true: there is one row.
  cursor            Position in the ledger.
leftover Files in the artifact store that are to be removed.
  ref               Reference of the file.
  again_at          When it is tried again.
$comments$, E'\n');
    v_line   text;
    v_table  text;
    v_words  text[];
    v_tables jsonb := '{}';
    v_columns jsonb := '{}';
    v_row    record;
begin
    foreach v_line in array v_lines loop
        if v_line ~ '^  ' then
            v_words := regexp_match(v_line, E'^  (\\S+) +(.*)$');
            v_columns := v_columns || jsonb_build_object(v_table || '.' || v_words[1], v_words[2]);
        elsif v_line <> '' then
            v_words := regexp_match(v_line, E'^(\\S+) ?(.*)$');
            v_table := v_words[1];
            v_tables := v_tables || jsonb_build_object(v_table, v_words[2]);
        end if;
    end loop;
    for v_row in
        select c.oid, c.relname, coalesce(v_tables ->> c.relname, case when c.relname ~ '^lock_' then 'Locked as a whole; always empty.' end) as says
          from pg_class c
         where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and coalesce(obj_description(c.oid, 'pg_class'), '') is distinct from v_tables ->> c.relname
    loop
        if v_row.says is not null then
            execute format('comment on table %s is %L', v_row.oid::regclass, v_row.says);
        end if;
    end loop;
    for v_row in
        select c.oid, a.attname, coalesce(v_columns ->> (c.relname || '.' || a.attname), v_columns ->> ('*.' || a.attname)) as says
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    loop
        if v_row.says is not null then
            execute format('comment on column %s.%I is %L', v_row.oid::regclass, v_row.attname, v_row.says);
        end if;
    end loop;
end $do$;
