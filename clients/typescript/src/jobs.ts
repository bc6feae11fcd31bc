// Jobs, and handles on single jobs: read them, wait for them, change them.

import { setTimeout as sleep } from "node:timers/promises";

import { JobFailed, Refused, WaitTimeout } from "./errors.js";
import { JobsNamespace } from "./generated/namespaces.js";
import type { CancelJobInput, Event, Job, MoveJobInput, Outcome, RescheduleJobInput, State, Verdict } from "./generated/types.js";
import type { CallOptions } from "./namespace.js";

export interface WaitOptions {
  /** Milliseconds; without it, until the job ends. */
  timeout?: number;
  signal?: AbortSignal;
}

export interface Progress {
  /** From 0 to 1, if it is known. */
  fraction: number | null;
  message: string | null;
}

/** Seconds that one request waits: proxies close connections that are idle for much longer. */
const LONGEST_POLL = 20;
/** Milliseconds after the caller's timeout in which the last response may still arrive. */
const OVERTIME = 5_000;
/** Milliseconds between two polls of a server that does not wait. */
const SHORTEST_POLL = 200;

export class Jobs extends JobsNamespace {
  /** The job with its payload. Throws `NotFound`. */
  async get(jobId: string, options: CallOptions = {}): Promise<Job> {
    return (await this.details(jobId, options)).job;
  }

  /** A handle on an existing job. */
  handle(jobId: string): JobHandle {
    return new JobHandle(this, { id: jobId, created: false });
  }

  /** Wait for the end of a job in rounds of long polls. Throws `WaitTimeout`. */
  async ended(jobId: string, { timeout, signal }: WaitOptions = {}): Promise<Outcome> {
    const end = timeout === undefined ? Infinity : Date.now() + timeout;
    const until = end + Math.min(OVERTIME, this.transport.timeout);
    for (;;) {
      const started = Date.now();
      const wait = Math.min(LONGEST_POLL, Math.max(0, (end - started) / 1_000));
      const options = { until, ...(signal && { signal }) };
      const outcome = await this.outcome(jobId, { wait: Number(wait.toFixed(3)) }, options);
      if (outcome.finished) return outcome;
      if (Date.now() >= end) throw new WaitTimeout(`Job ${jobId} had not ended after ${timeout} ms`, "wait_timeout");
      if (Date.now() - started < SHORTEST_POLL) await sleep(SHORTEST_POLL, undefined, { signal });
    }
  }
}

export class JobHandle {
  readonly id: string;
  /** False if an earlier job has the same key, or the job was refused; `reason` has the code. */
  readonly created: boolean;
  readonly reason: string | null;
  readonly detail: string | null;
  readonly #jobs: Jobs;

  constructor(jobs: Jobs, response: { id: string | null; created: boolean; reason?: string | null; detail?: string | null }) {
    this.#jobs = jobs;
    this.id = response.id ?? "";
    this.created = response.created;
    this.reason = response.reason ?? null;
    this.detail = response.detail ?? null;
  }

  async get(): Promise<Job> {
    return (await this.#jobs.details(this.id)).job;
  }

  async state(): Promise<State> {
    return (await this.get()).state;
  }

  history(): Promise<Event[]> {
    return this.#jobs.history(this.id).all();
  }

  /** The progress that the handler has reported, if any. */
  async progress(): Promise<Progress | undefined> {
    const saved = (await this.#jobs.details(this.id)).checkpoints["holdfast:progress"];
    if (typeof saved !== "object" || saved === null) return undefined;
    const { fraction, message } = saved as { fraction?: unknown; message?: unknown };
    return { fraction: typeof fraction === "number" ? fraction : null, message: typeof message === "string" ? message : null };
  }

  cancel(input: CancelJobInput = {}): Promise<Verdict> {
    return this.#jobs.cancel(this.id, input);
  }

  /** Run it at another time; without a time or a delay, immediately. */
  reschedule(input: RescheduleJobInput = {}): Promise<Verdict> {
    return this.#jobs.reschedule(this.id, input);
  }

  /** Move it within its queue. */
  move(input: MoveJobInput): Promise<Verdict> {
    return this.#jobs.move(this.id, input);
  }

  /** Wait for the end and return the job. Throws `WaitTimeout`. If its retries are new jobs, returns the last one. */
  async wait(options: WaitOptions = {}): Promise<Job> {
    const outcome = await this.#jobs.ended(this.id, options);
    return (await this.#jobs.details(outcome.id)).job;
  }

  /** Wait for the end and return the handler's result. Throws `JobFailed` and `WaitTimeout`. */
  async result(options: WaitOptions = {}): Promise<unknown> {
    const outcome = await this.#jobs.ended(this.id, options);
    if (outcome.state !== "succeeded") {
      const why = outcome.error_code ? `: ${outcome.error_message} (${outcome.error_code})` : "";
      throw new JobFailed(`Job ${outcome.id} is ${outcome.state}${why}`, "job_failed");
    }
    if (outcome.sealed) {
      throw new Refused(`The result of job ${outcome.id} is sealed: only programs with the key can open it`, "result_sealed");
    }
    return outcome.value;
  }
}
