// A worker: takes jobs under a lease, runs handlers, says how each attempt ended.
//
// The lease is its word that it is alive, renewed by a timer of its own. The fence of everything that is said is
// (lease, attempt): what the service no longer counts as ours has its handler's signal aborted, and is not settled.

import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

import { HoldfastError, StaleLease, Unavailable } from "./errors.js";
import * as schemas from "./schemas.js";
import type { Claim } from "./schemas.js";
import type { Transport } from "./transport.js";

/** Thrown by a handler: try again, after so many seconds. */
export class Retry extends Error {
  constructor(
    message: string,
    readonly after?: number,
  ) {
    super(message);
    this.name = "Retry";
  }
}
/** Thrown by a handler: no further try can help. */
export class Reject extends Error {
  override name = "Reject";
}
/** Thrown by a handler: run it again after so many seconds; that costs no try. */
export class Snooze extends Error {
  constructor(
    readonly after: number,
    message = "asked for",
  ) {
    super(message);
    this.name = "Snooze";
  }
}
/** Thrown by a handler: the work is not wanted any more. */
export class Cancel extends Error {
  override name = "Cancel";
}

export interface Context {
  readonly job: Claim;
  /** Aborted when the job was cancelled or taken away, or the worker must leave: stop then. */
  readonly signal: AbortSignal;
  /** Save something that the next attempt finds in `job.checkpoints`. */
  checkpoint(name: string, value: unknown): Promise<void>;
  /** Say how far this attempt is, from 0 to 1. */
  progress(fraction: number, message?: string): Promise<void>;
}

export type Handler = (payload: unknown, context: Context) => unknown;

export interface WorkerOptions {
  /** By kind. Only jobs of these kinds are taken. */
  handlers: Record<string, Handler>;
  queues?: string[];
  /** How many jobs run at a time. */
  concurrency?: number;
  /** The executor's label, as the service's list of executors has it. */
  name?: string;
  /** Seconds that the lease lasts unless it is renewed, which happens three times as often. */
  ttl?: number;
  /** Milliseconds that running jobs have after the stop; then they are handed back, at no cost. */
  grace?: number;
  /** Seconds to wait at the service for a job. */
  wait?: number;
  /** What went wrong and was survived: a connection, a lease. */
  onTrouble?: (error: unknown) => void;
}

interface Running {
  claim: Claim;
  stop: AbortController;
  /** Whether it is still ours to settle. */
  ours: boolean;
  done: Promise<void>;
}

type Ending = {
  outcome: "succeeded" | "failed" | "retry" | "reject" | "snooze" | "cancel";
  result?: unknown;
  error?: { type: string; message: string; traceback?: string };
  after?: number;
};

const LONGEST_PAUSE = 5_000;

export class Worker {
  readonly #transport: Transport;
  readonly #options: Required<Omit<WorkerOptions, "onTrouble">> & Pick<WorkerOptions, "onTrouble">;
  readonly #running = new Map<string, Running>();
  #lease: string | undefined;
  /** How many claims were begun, and how many of them are over. */
  #begun = 0;
  #over = 0;
  /** Jobs that the lease holds and nobody here knows of, with how many claims had been begun when they were seen. */
  readonly #strange = new Map<string, number>();
  #pause = 0;
  #freed: () => void = nothing;

  constructor(transport: Transport, options: WorkerOptions) {
    this.#transport = transport;
    this.#options = {
      queues: ["default"],
      concurrency: 4,
      name: "worker",
      ttl: 30,
      grace: 10_000,
      wait: 10,
      ...options,
    };
  }

  /** The jobs in its hands. */
  get running(): readonly Claim[] {
    return [...this.#running.values()].map((each) => each.claim);
  }

  /** Until the signal: then nothing more is taken, what runs may end within the grace, and the rest is handed back. */
  async run(signal: AbortSignal): Promise<void> {
    const over = new AbortController();
    const beating = this.#beat(over.signal);
    try {
      while (!signal.aborted) {
        try {
          await this.#turn(signal);
          this.#pause = 0;
        } catch (error) {
          if (signal.aborted) break;
          if (!(await this.#survived(error, signal))) throw error;
        }
      }
    } finally {
      await this.#leave();
      over.abort();
      await beating;
    }
  }

  async #turn(signal: AbortSignal): Promise<void> {
    const { concurrency, queues, handlers, ttl, wait, name } = this.#options;
    const kinds = Object.keys(handlers);
    if (this.#lease === undefined) {
      const body = { name, ttl, kinds, queues, slots: concurrency };
      const opened = await this.#transport.ask(schemas.leaseSchema, { method: "POST", path: "/leases", body, signal });
      this.#lease = opened.lease;
    }
    const want = Math.min(concurrency - this.#running.size, 100);
    if (want <= 0) {
      await this.#room(signal);
      return;
    }
    const lease = this.#lease;
    const request = {
      method: "POST" as const,
      path: `/leases/${lease}/claim`,
      // While others run, their end may make room for more: the wait is short then.
      body: { queues, kinds, want, ttl, wait: this.#running.size > 0 ? Math.min(wait, 1) : wait },
      patience: wait * 1_000,
      signal,
    };
    this.#begun++;
    try {
      const { jobs } = await this.#transport.ask(schemas.claimedSchema, request);
      for (const claim of jobs) this.#begin(lease, claim);
    } finally {
      this.#over++;
    }
  }

  /** Until one of them has ended. Nothing is left behind on the signal, nor on a job that takes days. */
  #room(signal: AbortSignal): Promise<void> {
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

  #begin(lease: string, claim: Claim): void {
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
    const said = { job: claim.id, attempt: claim.attempt };
    const save = async (body: object): Promise<void> => {
      stop.signal.throwIfAborted();
      const path = `/leases/${lease}/checkpoint`;
      try {
        await this.#transport.ask(z.unknown(), { method: "POST", path, body: { ...said, ...body }, repeatable: true });
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
    };
    const ending = await this.#ended(claim, context);
    if (!each.ours) return; // somebody else's by now: what it came to does not count
    const body = { ...said, ...ending };
    const settle = { method: "POST" as const, path: `/leases/${lease}/settle`, body, repeatable: true };
    try {
      await this.#transport.ask(schemas.settledSchema, settle);
    } catch (error) {
      this.#options.onTrouble?.(error); // nobody knows of it here any more, so that it will be handed back
    }
  }

  async #ended(claim: Claim, context: Context): Promise<Ending> {
    try {
      const handler = this.#options.handlers[claim.kind];
      if (!handler) throw new Reject(`there is no handler for ${claim.kind}`);
      const result: unknown = await handler(claim.payload, context);
      JSON.stringify(result); // what cannot be written down fails here, as the handler's fault
      return result === undefined ? { outcome: "succeeded" } : { outcome: "succeeded", result };
    } catch (error) {
      return endingOf(error);
    }
  }

  /** Three times in the life of the lease: that we are alive, and what of ours is no longer ours. */
  async #beat(over: AbortSignal): Promise<void> {
    const every = (this.#options.ttl * 1_000) / 3;
    while (!over.aborted) {
      await sleep(every, undefined, { signal: over }).catch(() => undefined);
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
        if (orphans.length > 0) await this.#handBack(lease, orphans);
      } catch (error) {
        if (over.aborted) return;
        if (error instanceof StaleLease) this.#lostAll(lease);
        else this.#options.onTrouble?.(error);
      }
    }
  }

  /** Renew the lease; answers what it holds. */
  async #held(lease: string, signal?: AbortSignal): Promise<{ id: string; attempt: number }[]> {
    const { ttl } = this.#options;
    // An answer that does not come must not cost the lease: there is time for another try or two.
    const [path, within] = [`/leases/${lease}/renew`, (ttl * 1_000) / 3];
    const request = { method: "POST" as const, path, body: { ttl }, repeatable: true, within, signal };
    return (await this.#transport.ask(schemas.renewedSchema, request)).jobs;
  }

  /** Of what the lease holds and nobody here knows of: what no claim that is under way can still bring. The answer to
   * its claim, or to its settlement, was lost; others are to have it. */
  #orphans(unknown: readonly { id: string; attempt: number }[]): { id: string; attempt: number }[] {
    const seen = new Map(unknown.map((job) => [`${job.id} ${job.attempt}`, job]));
    for (const key of this.#strange.keys()) if (!seen.has(key)) this.#strange.delete(key);
    const orphans = [...seen].filter(([key]) => (this.#strange.get(key) ?? Infinity) <= this.#over);
    for (const key of seen.keys()) if (!this.#strange.has(key)) this.#strange.set(key, this.#begun);
    return orphans.map(([, job]) => job);
  }

  #lost(each: Running): void {
    each.ours = false;
    each.stop.abort(new HoldfastError("the job is no longer this worker's", "stale_lease"));
  }

  #lostAll(lease: string): void {
    if (this.#lease !== lease) return;
    this.#lease = undefined;
    for (const each of this.#running.values()) this.#lost(each);
  }

  async #survived(error: unknown, signal: AbortSignal): Promise<boolean> {
    if (error instanceof StaleLease && this.#lease !== undefined) {
      this.#lostAll(this.#lease);
    } else if (!(error instanceof Unavailable)) {
      return false; // a wrong token, a refused executor: it will not get better by itself
    }
    this.#options.onTrouble?.(error);
    this.#pause = Math.min(LONGEST_PAUSE, Math.max(100, this.#pause * 2));
    await sleep(this.#pause * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => undefined);
    return true;
  }

  async #leave(): Promise<void> {
    const rest = () => Promise.all([...this.#running.values()].map((each) => each.done));
    await Promise.race([rest(), sleep(this.#options.grace, undefined, { ref: false })]);
    const lease = this.#lease;
    for (const each of this.#running.values()) if (each.ours) this.#lost(each);
    try {
      // What it holds by the service's word: also jobs of a claim whose answer nobody waited for any more.
      const held = lease === undefined ? [] : await this.#held(lease);
      if (lease !== undefined && held.length > 0) await this.#handBack(lease, held);
      if (lease !== undefined) await this.#transport.ask(z.unknown(), { method: "DELETE", path: `/leases/${lease}` });
    } catch (error) {
      this.#options.onTrouble?.(error); // the lease will lapse
    }
    this.#lease = undefined;
  }

  async #handBack(lease: string, jobs: readonly { id: string; attempt: number }[]): Promise<void> {
    const body = { jobs: jobs.map(({ id, attempt }) => ({ id, attempt })) };
    const request = { method: "POST" as const, path: `/leases/${lease}/release`, body, repeatable: true };
    await this.#transport.ask(z.unknown(), request);
  }
}

function endingOf(error: unknown): Ending {
  const known = error instanceof Error ? error : new Error(String(error));
  const said: { type: string; message: string; traceback?: string } = {
    type: (known.constructor.name || known.name || "Error").slice(0, 200),
    message: known.message.slice(0, 2_000),
  };
  if (known.stack) said.traceback = known.stack.slice(0, 16_000);
  if (known instanceof Retry) {
    return known.after === undefined
      ? { outcome: "retry", error: said }
      : { outcome: "retry", error: said, after: known.after };
  }
  if (known instanceof Reject) return { outcome: "reject", error: said };
  if (known instanceof Snooze) return { outcome: "snooze", error: said, after: known.after };
  if (known instanceof Cancel) return { outcome: "cancel", error: said };
  return { outcome: "failed", error: said };
}

function nothing(): void {}
