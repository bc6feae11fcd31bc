// The client: enqueue, look, wait, decide, follow; and what operators do, by its nouns.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

import { JobFailed, NotFound, Refused, unexpected, WaitTimeout } from "./errors.js";
import { DeadLetters, Queues, Schedules } from "./operating.js";
import { every } from "./pages.js";
import { reserve, type Held, type Reserve } from "./reserving.js";
import * as schemas from "./schemas.js";
import type { Approval, Enqueued, Event, Health, Job, Outcome, SentResult, Verdict } from "./schemas.js";
import { Parser } from "./sse.js";
import { Transport, type TransportOptions } from "./transport.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** What a job may be enqueued with. The names are those of the wire, as everywhere. */
export interface JobOptions {
  queue?: string;
  priority?: number;
  /** Seconds, or text such as `90s`, `1h30m`, `2d`. */
  delay?: number | string;
  run_at?: Date;
  deadline?: Date;
  /** One job a key: asking again answers the same job. */
  key?: string;
  dedupe?: "skip" | "coalesce";
  tags?: string[];
  parent?: string;
  correlation_id?: string;
  causation_id?: string;
  external_ref?: string;
  agent?: string;
  /** The label of the workers that may run it. */
  executor?: string;
  limit_key?: string;
  resources?: string[];
  retry?: string | { max_attempts?: number; max_crashes?: number; backoff?: string | Record<string, unknown> };
  retry_as?: "new_job";
}

export interface Call extends JobOptions {
  kind: string;
  payload?: unknown;
}

export interface JobsWanted {
  /** The same in words: `state:dead_letter kind:mail since:1h "connection refused"`. */
  q?: string;
  state?: string;
  kind?: string;
  queue?: string;
  agent?: string;
  executor?: string;
  tag?: string;
  correlation_id?: string;
  parent_id?: string;
  group?: string;
  since?: Date | string;
  until?: Date | string;
}

export interface ApprovalsWanted {
  state?: string;
  approver?: string;
  name?: string;
  job?: string;
}

export interface EventsWanted {
  kind?: string | string[];
  type?: string | string[];
  job?: string | string[];
}

/** Seconds that one request waits at most: what lies in between may not keep an idle connection much longer. */
const LONGEST_POLL = 20;
/** Milliseconds after a caller's time in which the last answer may still come: it is on its way. */
const OVERTIME = 5_000;
const REMEMBERED = 5_000;

export class Client {
  readonly schedules: Schedules;
  readonly deadLetters: DeadLetters;
  readonly queues: Queues;
  readonly #transport: Transport;

  constructor(options: TransportOptions = {}) {
    this.#transport = new Transport(options);
    this.schedules = new Schedules(this.#transport);
    this.deadLetters = new DeadLetters(this.#transport);
    this.queues = new Queues(this.#transport);
  }

  /** How the work of the token's tenant stands, with a verdict and its reasons. */
  health(): Promise<Health> {
    return this.#transport.ask(schemas.healthSchema, { method: "GET", path: "/health" });
  }

  /** Use something directly while no job is begun there: a resource, a queue, or (with neither) everything. `work` is
   * called when its turn has come and the jobs under way there have ended; the reservation is kept alive meanwhile. */
  reserve<T>(wanted: Reserve, work: (held: Held) => Promise<T> | T): Promise<T> {
    return reserve(this.#transport, wanted, work);
  }

  /** Sent again after a lost connection it is one job: a key goes with it, made once. */
  async enqueue(kind: string, payload: unknown = {}, options: JobOptions = {}): Promise<Enqueued> {
    const { key, ...said } = options;
    const request = {
      method: "POST" as const,
      path: "/jobs",
      body: { kind, payload, ...said },
      headers: { "Idempotency-Key": key ?? newKey() },
      repeatable: true,
    };
    return ours(key, await this.#transport.ask(schemas.enqueuedSchema, request));
  }

  /** All in one transaction, at most 1,000; the answers are in the same order, each with its verdict. */
  async enqueueMany(calls: readonly Call[]): Promise<Enqueued[]> {
    if (calls.length === 0) return [];
    const jobs = calls.map((call) => ({ ...call, payload: call.payload ?? {}, key: call.key ?? newKey() }));
    const request = { method: "POST" as const, path: "/jobs/batch", body: { jobs }, repeatable: true };
    const { items } = await this.#transport.ask(schemas.pageOf(schemas.enqueuedSchema), request);
    if (items.length !== calls.length) throw unexpected("the answer to a batch has another length");
    return items.map((item, n) => ours(calls[n]?.key, item));
  }

  /** The job, or undefined when there is none of this id in the token's tenant. */
  async get(id: string): Promise<Job | undefined> {
    const shown = z.object({ job: schemas.jobSchema });
    try {
      return (await this.#transport.ask(shown, { method: "GET", path: `/jobs/${encodeURIComponent(id)}` })).job;
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  /** Every job that matches, newest first, read page by page as you go; without payloads, which `get` has. */
  list(wanted: JobsWanted = {}): AsyncGenerator<Job, void, undefined> {
    return every(this.#transport, schemas.jobSchema, "/jobs", { ...wanted });
  }

  async history(id: string): Promise<Event[]> {
    const found: Event[] = [];
    for await (const event of every(this.#transport, schemas.eventSchema, `/jobs/${encodeURIComponent(id)}/history`, {})) {
      found.push(event);
    }
    return found;
  }

  /** What the job returned, once it has ended. `JobFailed` if it did not succeed, `WaitTimeout` after `timeout`
   * milliseconds; the job goes on then. */
  async wait(id: string, options: { timeout?: number; signal?: AbortSignal } = {}): Promise<unknown> {
    const end = options.timeout === undefined ? undefined : Date.now() + options.timeout;
    for (;;) {
      const begun = Date.now();
      const left = end === undefined ? LONGEST_POLL : Math.min(LONGEST_POLL, Math.max(0, (end - begun) / 1_000));
      const until = end === undefined ? undefined : end + Math.min(OVERTIME, this.#transport.timeout);
      const outcome = await this.#outcome(id, left, until, options.signal);
      if (outcome.finished) return valueOf(outcome);
      if (end !== undefined && Date.now() >= end) {
        throw new WaitTimeout(`job ${id} had not ended after ${options.timeout} ms`, "wait_timeout");
      }
      if (Date.now() - begun < 200) await sleep(200, undefined, { signal: options.signal });
    }
  }

  #outcome(id: string, wait: number, until: number | undefined, signal: AbortSignal | undefined): Promise<Outcome> {
    const path = `/jobs/${encodeURIComponent(id)}/result`;
    const asked = { method: "GET" as const, path, query: { wait: wait.toFixed(3) }, patience: wait * 1_000 };
    return this.#transport.ask(schemas.outcomeSchema, { ...asked, until, signal });
  }

  cancel(id: string, reason?: string): Promise<Verdict> {
    return this.#act(id, "cancel", { reason });
  }

  /** Put a dead letter back into its queue with all its tries before it, or as many as given here. */
  redrive(id: string, options: { reason?: string; max_attempts?: number } = {}): Promise<Verdict> {
    return this.#act(id, "redrive", options);
  }

  discard(id: string, reason: string): Promise<Verdict> {
    return this.#act(id, "discard", { reason });
  }

  #act(id: string, word: string, body: object): Promise<Verdict> {
    const path = `/jobs/${encodeURIComponent(id)}/${word}`;
    return this.#transport.ask(schemas.verdictSchema, { method: "POST", path, body });
  }

  /** What waits for people, the oldest first. */
  approvals(wanted: ApprovalsWanted = {}): AsyncGenerator<Approval, void, undefined> {
    return every(this.#transport, schemas.approvalSchema, "/approvals", { ...wanted });
  }

  /** Say yes, as whom the token names. Answers the approval as it is now: still open when more have to agree. */
  approve(approval: string, said: { comment?: string; data?: unknown } = {}): Promise<Approval> {
    return this.#decide(approval, "approve", said);
  }

  deny(approval: string, said: { comment?: string; data?: unknown } = {}): Promise<Approval> {
    return this.#decide(approval, "deny", said);
  }

  #decide(approval: string, word: string, body: object): Promise<Approval> {
    const path = `/approvals/${encodeURIComponent(approval)}/${word}`;
    return this.#transport.ask(schemas.approvalSchema, { method: "POST", path, body });
  }

  /** Tell of something that happened: jobs that wait for it go on. With a `key` it is told once. */
  sendEvent(name: string, data: Record<string, unknown> = {}, options: { key?: string; job?: string } = {}): Promise<SentResult> {
    const request = { method: "POST" as const, path: "/events", body: { name, data, ...options } };
    return this.#transport.ask(schemas.sentResultSchema, { ...request, repeatable: options.key !== undefined });
  }

  /** Events as they happen, from a cursor or from now on, until the signal. A lost connection is made again and goes
   * on where it was: nothing is missed, nothing comes twice. Where retention has removed events that were not read it is
   * `EventsGone`; with `gaps: "skip"` it goes on with what is left. */
  async *follow(
    options: EventsWanted & { after?: string; gaps?: "tell" | "skip"; signal?: AbortSignal } = {},
  ): AsyncGenerator<Event, void, undefined> {
    const { after, signal, ...wanted } = options;
    let place = after;
    let silent = 0;
    const seen = new Set<number>();
    while (!signal?.aborted) {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (place !== undefined) headers["last-event-id"] = place;
      const stop = new AbortController();
      const until = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
      let parser = new Parser(place);
      try {
        const request = { method: "GET" as const, path: "/events/stream", query: { ...wanted }, headers, signal: until };
        const response = await this.#transport.open(request);
        // From now on means from here on, also when the connection is lost before the first word.
        place ||= response.headers.get("holdfast-cursor") ?? undefined;
        parser = new Parser(place);
        for await (const chunk of this.#transport.chunks(response, until)) {
          for (const message of parser.feed(chunk)) {
            if (!message.event.startsWith("job.")) continue;
            const event = schemas.eventSchema.parse(JSON.parse(message.data));
            if (seen.has(event.seq)) continue;
            seen.add(event.seq);
            if (seen.size > REMEMBERED) seen.delete(seen.values().next().value as number);
            yield event;
          }
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (error instanceof z.ZodError || error instanceof SyntaxError || error instanceof RangeError) {
          throw unexpected("the service told of an event that cannot be read");
        }
        throw error;
      } finally {
        stop.abort();
      }
      place = parser.lastId ?? place;
      silent = parser.told ? 0 : silent + 1;
      await sleep(this.#transport.beforeTheNext(parser, silent), undefined, { signal }).catch(() => undefined);
    }
  }

  /** A worker for these kinds: `await client.worker({ handlers: { resize } }).run(signal)`. */
  worker(options: WorkerOptions): Worker {
    return new Worker(this.#transport, options);
  }
}

function newKey(): string {
  return `ts-${randomUUID()}`;
}

/** Under a key that nobody else has: if it was there already, that was us, in a try whose answer was lost. */
function ours(key: string | undefined, answer: Enqueued): Enqueued {
  return key === undefined && answer.reason === "duplicate_key" ? { ...answer, created: true, reason: null } : answer;
}

function valueOf(outcome: Outcome): unknown {
  if (outcome.state !== "succeeded") {
    const why = outcome.error_code ? `: ${outcome.error_message} (${outcome.error_code})` : "";
    throw new JobFailed(`job ${outcome.id} is ${outcome.state}${why}`, "job_failed");
  }
  if (outcome.sealed) throw new Refused(`the result of job ${outcome.id} is sealed`, "result_sealed");
  return outcome.value;
}
