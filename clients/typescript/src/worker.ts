// A worker: claims jobs under a lease, runs their handlers, and settles each attempt.
//
// A timer renews the lease. Every request about a job carries the fence (lease, attempt): when the lease no longer holds
// a job, the worker aborts the signal of its handler and settles nothing for it.

import { setTimeout as sleep } from "node:timers/promises";

import { HoldfastError, isTransient, StaleLease } from "./errors.js";
import type { LeasesNamespace } from "./generated/namespaces.js";
import type { ClaimedJob, HeldJob, SettleInput } from "./generated/types.js";
import { jobFields, jsonLines, oneLine, type Level, type Log, type LogLine } from "./log.js";

/** Thrown by a handler: retry, after a number of seconds or by the job's policy. */
export class Retry extends Error {
  constructor(
    message: string,
    readonly after?: number,
  ) {
    super(message);
    this.name = "Retry";
  }
}
/** Thrown by a handler: do not retry. */
export class Reject extends Error {
  override name = "Reject";
}
/** Thrown by a handler: run it again after a number of seconds, without using up an attempt. */
export class Snooze extends Error {
  constructor(
    readonly after: number,
    message = "snoozed",
  ) {
    super(message);
    this.name = "Snooze";
  }
}
/** Thrown by a handler: cancel the job. */
export class Cancel extends Error {
  override name = "Cancel";
}

export interface Context {
  readonly job: ClaimedJob;
  /** Aborted when the job is cancelled or taken over, or the worker's grace period ends: stop then. */
  readonly signal: AbortSignal;
  /** Save a value that the next attempt finds in `job.checkpoints`. */
  checkpoint(name: string, value: unknown): Promise<void>;
  /** Report the progress of this attempt, from 0 to 1. */
  progress(fraction: number, message?: string): Promise<void>;
  /** Write a log line with the fields of this job. */
  log(message: string, level?: Level): void;
}

export type Handler = (payload: unknown, context: Context) => unknown;

export interface WorkerOptions {
  /** By kind. The worker claims only jobs of these kinds. */
  handlers: Record<string, Handler>;
  /** Default: `["default"]`. */
  queues?: string[];
  /** Maximum number of jobs at a time (4). */
  concurrency?: number;
  /** The label of the executor, and the `worker` of log lines. */
  name?: string;
  /** Seconds that the lease lasts without renewal (30). It is renewed three times in that time. */
  ttl?: number;
  /** Milliseconds that running jobs have after the stop (10,000). The worker then releases them; no attempt is used up. */
  grace?: number;
  /** Seconds that a claim waits at the server for a job (10). */
  wait?: number;
  /** Receives log lines. Default: JSON lines on standard error; `false` for none. */
  log?: Log | false;
  /** The lowest level to log (`info`). */
  level?: Level;
}

interface Running {
  claim: ClaimedJob;
  stop: AbortController;
  /** Whether this worker may still settle it. */
  ours: boolean;
  done: Promise<void>;
}

type Ending = Pick<SettleInput, "outcome" | "result" | "error" | "after">;

const LONGEST_PAUSE = 5_000;
const LEVELS: Level[] = ["debug", "info", "warning", "error"];

export class Worker {
  readonly #leases: LeasesNamespace;
  readonly #options: Required<WorkerOptions>;
  readonly #running = new Map<string, Running>();
  #lease: string | undefined;
  /** The number of claims that were sent, and of those that have ended. */
  #claimsSent = 0;
  #claimsOver = 0;
  /** Jobs that the lease holds and this worker does not know, with the number of claims sent when they were seen. */
  readonly #unknown = new Map<string, number>();
  #pause = 0;
  #freed: () => void = nothing;

  constructor(leases: LeasesNamespace, options: WorkerOptions) {
    this.#leases = leases;
    this.#options = {
      queues: ["default"],
      concurrency: 4,
      name: "worker",
      ttl: 30,
      grace: 10_000,
      wait: 10,
      log: jsonLines,
      level: "info",
      ...options,
    };
  }

  /** The jobs that are running. */
  get running(): readonly ClaimedJob[] {
    return [...this.#running.values()].map((each) => each.claim);
  }

  /** Run until the signal, or without one until SIGTERM or SIGINT. Then claim nothing more, let running jobs end within
   * the grace period, and release the rest. */
  async run(signal?: AbortSignal): Promise<void> {
    if (signal) return this.#run(signal);
    const stop = new AbortController();
    const end = (name: NodeJS.Signals): void => stop.abort(name);
    process.on("SIGTERM", end).on("SIGINT", end);
    try {
      await this.#run(stop.signal);
    } finally {
      process.off("SIGTERM", end).off("SIGINT", end);
    }
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { concurrency, queues } = this.#options;
    this.#log("info", `Worker started: queues ${queues.join(", ")}, ${concurrency} jobs at a time`);
    const over = new AbortController();
    const renewal = this.#renewals(over.signal);
    try {
      while (!signal.aborted) {
        try {
          await this.#claim(signal);
          if (this.#pause > 0) this.#log("info", "Connected again");
          this.#pause = 0;
        } catch (error) {
          if (signal.aborted) break;
          if (!(await this.#recovered(error, signal))) throw error;
        }
      }
    } finally {
      this.#log("info", `Worker stopping: ${this.#running.size} jobs running`);
      await this.#shutDown();
      over.abort();
      await renewal;
      this.#log("info", "Worker stopped");
    }
  }

  async #claim(signal: AbortSignal): Promise<void> {
    const { concurrency, queues, handlers, ttl, wait, name } = this.#options;
    const kinds = Object.keys(handlers);
    this.#lease ??= (await this.#leases.open({ name, ttl, kinds, queues, slots: concurrency }, { signal })).lease;
    const want = Math.min(concurrency - this.#running.size, 100);
    if (want <= 0) {
      await this.#freeSlot(signal);
      return;
    }
    const lease = this.#lease;
    // While jobs run, the wait is short: the end of one of them frees a slot that should be used.
    const input = { queues, kinds, want, ttl, wait: this.#running.size > 0 ? Math.min(wait, 1) : wait };
    this.#claimsSent++;
    try {
      const { jobs } = await this.#leases.claim(lease, input, { signal });
      for (const claim of jobs) this.#start(lease, claim);
    } finally {
      this.#claimsOver++;
    }
  }

  /** Wait until a job has ended. Leaves no listener on the signal, which may live for days. */
  #freeSlot(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      this.#freed = () => {
        signal.removeEventListener("abort", this.#freed);
        this.#freed = nothing;
        resolve();
      };
      signal.addEventListener("abort", this.#freed);
      if (signal.aborted) this.#freed();
    });
  }

  #start(lease: string, claim: ClaimedJob): void {
    const stop = new AbortController();
    const each: Running = { claim, stop, ours: true, done: Promise.resolve() };
    this.#running.set(claim.id, each);
    each.done = this.#execute(lease, each).finally(() => {
      if (this.#running.get(claim.id) === each) this.#running.delete(claim.id);
      this.#freed();
    });
  }

  async #execute(lease: string, each: Running): Promise<void> {
    const { claim, stop } = each;
    const fence = { job: claim.id, attempt: claim.attempt };
    const save = async (value: object): Promise<void> => {
      stop.signal.throwIfAborted();
      try {
        await this.#leases.checkpoint(lease, { ...fence, ...value });
      } catch (error) {
        if (error instanceof StaleLease) this.#lost(each);
        throw error;
      }
    };
    const context: Context = {
      job: claim,
      signal: stop.signal,
      checkpoint: (name, value) => save({ name, value }),
      progress: (progress, message) => save({ progress, message }),
      log: (message, level = "info") => this.#log(level, message, jobFields(claim)),
    };
    this.#log("debug", "Job started", jobFields(claim));
    const started = performance.now();
    const ending = await this.#attempt(claim, context);
    const duration = Math.round(performance.now() - started) / 1_000;
    if (each.ours) await this.#settle(lease, each, ending, duration);
    else this.#log("warning", "Result dropped: the job belongs to another worker or was cancelled", { ...jobFields(claim), duration });
  }

  async #attempt(claim: ClaimedJob, context: Context): Promise<Ending> {
    try {
      const handler = Object.hasOwn(this.#options.handlers, claim.kind) ? this.#options.handlers[claim.kind] : undefined;
      if (!handler) throw new Reject(`There is no handler for ${claim.kind}`);
      const result: unknown = await handler(claim.payload, context);
      JSON.stringify(result); // a result that is not JSON is the handler's failure
      return result === undefined ? { outcome: "succeeded" } : { outcome: "succeeded", result };
    } catch (error) {
      return endingOf(error);
    }
  }

  /** Record how the attempt ended. During an outage this is retried for as long as the lease holds the job: otherwise
   * finished work would run a second time. */
  async #settle(lease: string, each: Running, ending: Ending, duration: number): Promise<void> {
    const { claim } = each;
    const fields = { ...jobFields(claim), duration, ...(ending.error?.type ? { error: ending.error.type } : {}) };
    for (let pause = 250; each.ours; pause = Math.min(LONGEST_PAUSE, pause * 2)) {
      try {
        await this.#leases.settle(lease, { job: claim.id, attempt: claim.attempt, ...ending });
        const why = ending.error?.message ? `: ${ending.error.message}` : "";
        this.#log(ending.outcome === "succeeded" ? "info" : "warning", `Job ended: ${ending.outcome}${why}`, fields);
        return;
      } catch (error) {
        if (error instanceof StaleLease) return this.#log("warning", `Result not recorded: ${error.message}`, fields);
        if (!(error instanceof HoldfastError) || !isTransient(error)) {
          this.#log("error", `Result refused: ${messageOf(error)}`, fields);
          if (ending.outcome !== "succeeded") return; // the next renewal releases the job
          ending = { outcome: "reject", error: { type: "ResultRefused", message: messageOf(error).slice(0, 2_000) } };
          continue;
        }
        this.#log("warning", `Result not recorded yet: ${error.message}`, fields);
        await sleep(pause, undefined, { signal: each.stop.signal }).catch(nothing);
      }
    }
  }

  /** Renew the lease three times per `ttl`, and compare the jobs it holds with those that run here. */
  async #renewals(over: AbortSignal): Promise<void> {
    const every = (this.#options.ttl * 1_000) / 3;
    while (!over.aborted) {
      await sleep(every, undefined, { signal: over }).catch(nothing);
      const lease = this.#lease;
      if (over.aborted || lease === undefined) continue;
      const before = new Map(this.#running);
      try {
        const jobs = await this.#held(lease, over);
        const held = new Map(jobs.map((job) => [job.id, job.attempt]));
        for (const [id, each] of before) {
          if (this.#running.get(id) === each && held.get(id) !== each.claim.attempt) this.#lost(each);
        }
        const orphans = this.#orphans(jobs.filter((job) => !before.has(job.id) && !this.#running.has(job.id)));
        if (orphans.length > 0) await this.#release(lease, orphans);
      } catch (error) {
        if (over.aborted) return;
        if (error instanceof StaleLease) this.#lostAll(lease);
        else this.#log("warning", `Lease not renewed: ${messageOf(error)}`);
      }
    }
  }

  /** Renew the lease; returns the jobs it holds. */
  async #held(lease: string, signal?: AbortSignal): Promise<HeldJob[]> {
    const { ttl } = this.#options;
    // A lost response must not cost the lease: each attempt has a third of its time.
    const timeout = (ttl * 1_000) / 3;
    return (await this.#leases.renew(lease, { ttl }, signal ? { timeout, signal } : { timeout })).jobs;
  }

  /** Jobs of the lease that no pending claim can still return: the response to their claim or settlement was lost. They
   * are released, so that another worker can run them. */
  #orphans(unknown: readonly HeldJob[]): HeldJob[] {
    const seen = new Map(unknown.map((job) => [`${job.id} ${job.attempt}`, job]));
    for (const key of this.#unknown.keys()) if (!seen.has(key)) this.#unknown.delete(key);
    const orphans = [...seen].filter(([key]) => (this.#unknown.get(key) ?? Infinity) <= this.#claimsOver);
    for (const key of seen.keys()) if (!this.#unknown.has(key)) this.#unknown.set(key, this.#claimsSent);
    return orphans.map(([, job]) => job);
  }

  #lost(each: Running): void {
    if (!each.ours) return;
    each.ours = false;
    this.#log("warning", "Job lost: cancelled, or taken over by another worker", jobFields(each.claim));
    each.stop.abort(new HoldfastError("The job no longer belongs to this worker", "stale_lease"));
  }

  #lostAll(lease: string): void {
    if (this.#lease !== lease) return;
    this.#lease = undefined;
    this.#log("warning", "Lease lost");
    for (const each of this.#running.values()) this.#lost(each);
  }

  async #recovered(error: unknown, signal: AbortSignal): Promise<boolean> {
    if (error instanceof StaleLease && this.#lease !== undefined) this.#lostAll(this.#lease);
    else if (!(error instanceof HoldfastError) || !isTransient(error)) return false; // a wrong token stays wrong
    this.#pause = Math.min(LONGEST_PAUSE, Math.max(100, this.#pause * 2));
    this.#log("warning", `Cannot claim, trying again: ${messageOf(error)}`);
    await sleep(this.#pause * (0.5 + Math.random() / 2), undefined, { signal }).catch(nothing);
    return true;
  }

  async #shutDown(): Promise<void> {
    const rest = () => Promise.all([...this.#running.values()].map((each) => each.done));
    await Promise.race([rest(), sleep(this.#options.grace, undefined, { ref: false })]);
    const lease = this.#lease;
    for (const each of this.#running.values()) this.#lost(each);
    this.#lease = undefined;
    if (lease === undefined) return;
    try {
      // The jobs of the lease according to the server, including those of a claim whose response was lost.
      const held = await this.#held(lease);
      if (held.length > 0) await this.#release(lease, held);
      await this.#leases.end(lease);
    } catch (error) {
      this.#log("warning", `Lease not ended, it will expire: ${messageOf(error)}`);
    }
  }

  async #release(lease: string, jobs: readonly HeldJob[]): Promise<void> {
    await this.#leases.release(lease, { jobs: jobs.map(({ id, attempt }) => ({ id, attempt })) });
    this.#log("info", `Jobs released: ${jobs.length}`);
  }

  #log(level: Level, message: string, fields: Partial<LogLine> = {}): void {
    const { log, name } = this.#options;
    if (log === false || LEVELS.indexOf(level) < LEVELS.indexOf(this.#options.level)) return;
    log({ timestamp: new Date().toISOString(), level, message: oneLine(message), worker: name, ...fields });
  }
}

function endingOf(error: unknown): Ending {
  const thrown = error instanceof Error ? error : new Error(String(error));
  const report = {
    type: (thrown.constructor.name || thrown.name || "Error").slice(0, 200),
    message: thrown.message.slice(0, 2_000),
    ...(thrown.stack ? { traceback: thrown.stack.slice(0, 16_000) } : {}),
  };
  if (thrown instanceof Retry) return { outcome: "retry", error: report, after: thrown.after };
  if (thrown instanceof Reject) return { outcome: "reject", error: report };
  if (thrown instanceof Snooze) return { outcome: "snooze", error: report, after: thrown.after };
  if (thrown instanceof Cancel) return { outcome: "cancel", error: report };
  return { outcome: "failed", error: report };
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function nothing(): void {}
