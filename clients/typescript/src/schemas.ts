// What the service answers, checked. The names are those of the wire, which are those of Python and of `--json`.
// What this release does not know is passed over, so that client and service need not be of the same release.

import { z } from "zod";

const time = z
  .string()
  .refine((text) => /(Z|[+-]\d\d:\d\d)$/.test(text) && !Number.isNaN(Date.parse(text)), "not a time with a zone")
  .transform((text) => new Date(text));
const anything: z.ZodType<unknown> = z.unknown();
const object = z.record(z.string(), z.unknown());

export const problemSchema = z.object({
  code: z.string().max(100),
  detail: z.string().optional(),
  fix: z.string().optional(),
  error: z.string().optional(),
  cursor: z.string().optional(),
  through: z.number().optional(),
});

export const jobSchema = z.object({
  id: z.string(),
  tenant: z.string(),
  kind: z.string(),
  queue: z.string(),
  state: z.string(),
  attempt: z.number(),
  retries: z.number(),
  crashes: z.number(),
  max_attempts: z.number(),
  max_crashes: z.number(),
  priority: z.number(),
  due_at: time.nullable(),
  started_at: time.nullable(),
  finished_at: time.nullable(),
  error_code: z.string().nullable(),
  error_message: z.string().nullable(),
  created_at: time,
  run_at: time.nullable(),
  deadline_at: time.nullable(),
  payload: anything,
  idempotency_key: z.string().nullable(),
  tags: z.array(z.string()),
  agent: z.string().nullable(),
  correlation_id: z.string().nullable(),
  causation_id: z.string().nullable(),
  parent_id: z.string().nullable(),
  workflow_id: z.string().nullable(),
  external_ref: z.string().nullable(),
  enqueued_by: z.string(),
  updated_at: time.nullish(),
  last_error_at: time.nullish(),
});
export type Job = z.infer<typeof jobSchema>;

/** The states in which a job is over. */
export const FINISHED: ReadonlySet<string> = new Set(["succeeded", "failed", "dead_letter", "cancelled", "cleaned"]);

export const enqueuedSchema = z.object({
  id: z.string().nullable(),
  created: z.boolean(),
  reason: z.string().nullish(),
  detail: z.string().nullish(),
});
export type Enqueued = z.infer<typeof enqueuedSchema>;

export const verdictSchema = z.object({
  id: z.string(),
  state: z.string().nullable(),
  refused: z.boolean(),
  reason: z.string().nullable(),
});
export type Verdict = z.infer<typeof verdictSchema>;

export const eventSchema = z.object({
  seq: z.number(),
  job_id: z.string(),
  tenant: z.string(),
  kind: z.string(),
  type: z.string(),
  from_state: z.string().nullable(),
  to_state: z.string(),
  attempt: z.number(),
  at: time,
  actor: z.string(),
  meta: object,
  cursor: z.string(),
});
export type Event = z.infer<typeof eventSchema>;

export const approvalSchema = z.object({
  id: z.string(),
  tenant: z.string(),
  job_id: z.string(),
  name: z.string(),
  summary: z.string(),
  data: anything,
  form: object.nullable(),
  approvers: z.array(z.string()),
  quorum: z.number(),
  requester: z.string(),
  state: z.string(),
  opened_at: time,
  decided_at: time.nullable(),
  expires_at: time.nullable(),
  approvals: z.number(),
});
export type Approval = z.infer<typeof approvalSchema>;

export function pageOf<Schema extends z.ZodTypeAny>(item: Schema) {
  return z.object({ items: z.array(item), next: z.string().nullish() });
}

export const outcomeSchema = z.object({
  id: z.string(),
  state: z.string(),
  finished: z.boolean(),
  value: anything,
  ref: z.string().nullish(),
  sealed: z.boolean().optional(),
  error_code: z.string().nullish(),
  error_message: z.string().nullish(),
});
export type Outcome = z.infer<typeof outcomeSchema>;

export const sentResultSchema = z.object({ id: z.string(), created: z.boolean(), woke: z.number() });
export type SentResult = z.infer<typeof sentResultSchema>;

// --- for operators ---

export const scheduleSchema = z.object({
  id: z.string(),
  tenant: z.string(),
  name: z.string(),
  /** `active`, `paused` or `ended`. */
  state: z.string(),
  timing: z.string(),
  zone: z.string(),
  kind: z.string(),
  template: z.string().nullable(),
  payload: object,
  options: object,
  missed: z.string(),
  overlap: z.string(),
  jitter: z.number(),
  next_fire_at: time.nullable(),
  last_fire_at: time.nullable(),
  problem: z.string().nullable(),
  created_by: z.string(),
  created_at: time,
});
export type Schedule = z.infer<typeof scheduleSchema>;

export const deadLetterGroupSchema = z.object({
  tenant: z.string(),
  /** Its name within the tenant. */
  fingerprint: z.string(),
  kind: z.string(),
  error_code: z.string(),
  error_message: z.string(),
  frame: z.string().nullable(),
  sample_job: z.string(),
  first_at: time,
  last_at: time,
  times: z.number(),
  open: z.number(),
  note: z.string().nullable(),
});
export type DeadLetterGroup = z.infer<typeof deadLetterGroupSchema>;

export const operationSchema = z.object({
  id: z.string(),
  tenant: z.string(),
  action: z.string(),
  reason: z.string().nullable(),
  rate: z.number().nullable(),
  /** `running`, `done` or `cancelled`. */
  state: z.string(),
  total: z.number(),
  capped: z.boolean(),
  done: z.number(),
  refused: z.number(),
  created_by: z.string(),
  created_at: time,
  finished_at: time.nullable(),
});
export type Operation = z.infer<typeof operationSchema>;

export const pauseSchema = z.object({
  tenant: z.string(),
  scope: z.string(),
  name: z.string(),
  reason: z.string(),
  refuse_enqueue: z.boolean(),
  set_by: z.string(),
  since: time,
  until: time.nullable(),
});
export type Pause = z.infer<typeof pauseSchema>;

export const healthSchema = z.object({
  verdict: z.enum(["ok", "warn", "critical"]),
  reasons: z.array(z.object({ code: z.string(), level: z.string(), says: z.string(), fix: z.string() })),
  backlog: z.number(),
  scheduled: z.number(),
  in_progress: z.number(),
  dead_letter_open: z.number(),
  oldest_queued_age_s: z.number().nullable(),
  lease_active: z.number(),
  workers: z.number(),
  approvals_open: z.number(),
  /** There is more of something than was counted. */
  capped: z.boolean(),
});
export type Health = z.infer<typeof healthSchema>;

export const reservedSchema = z.object({
  id: z.string(),
  scope: z.string(),
  name: z.string(),
  state: z.string(),
  /** Jobs that were begun before and are under way there. */
  running: z.number(),
  ahead: z.number(),
});
export type Reserved = z.infer<typeof reservedSchema>;

// --- for workers ---

export const leaseSchema = z.object({ lease: z.string(), until: time });

export const heldSchema = z.object({ id: z.string(), attempt: z.number() });
export const renewedSchema = z.object({ lease: z.string(), jobs: z.array(heldSchema) });

export const claimSchema = z.object({
  id: z.string(),
  attempt: z.number(),
  tenant: z.string(),
  kind: z.string(),
  queue: z.string(),
  payload: anything,
  retries: z.number(),
  max_attempts: z.number(),
  crashes: z.number(),
  max_crashes: z.number(),
  priority: z.number(),
  created_at: time,
  deadline_at: time.nullable(),
  correlation_id: z.string().nullable(),
  parent_id: z.string().nullable(),
  workflow_id: z.string().nullable(),
  agent: z.string().nullable(),
  tags: z.array(z.string()),
  checkpoints: object,
});
/** A job in a worker's hands; `attempt` goes with everything that is said of it. */
export type Claim = z.infer<typeof claimSchema>;
export const claimedSchema = z.object({ jobs: z.array(claimSchema) });

export const settledSchema = z.object({
  job: z.string(),
  attempt: z.number(),
  settled: z.boolean(),
  ending: z.string().nullish(),
  reason: z.string().nullish(),
});
export type Settled = z.infer<typeof settledSchema>;
