// The client: enqueue jobs, and one namespace for each resource of the HTTP API.

import { setTimeout as sleep } from "node:timers/promises";

import { list, nullable, record, text } from "./decoder.js";
import { unexpected, WaitTimeout } from "./errors.js";
import { Events } from "./events.js";
import { Namespaces, OperationsNamespace } from "./generated/namespaces.js";
import { decodeAccepted, decodeEnqueueResult } from "./generated/types.js";
import type { EnqueueJobInput, Operation, SendEventInput, SentResult } from "./generated/types.js";
import { JobHandle, Jobs, type WaitOptions } from "./jobs.js";
import { newKey, ours, type Page } from "./namespace.js";
import { Reservations } from "./reservation.js";
import { Transport, type TransportOptions } from "./transport.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** Options of a job. */
export type JobOptions = Omit<EnqueueJobInput, "kind" | "payload">;

/** One job of `enqueueMany`. */
export interface Call extends JobOptions {
  kind: string;
  payload?: unknown;
}

export class Operations extends OperationsNamespace {
  /** Wait until an operation is done or cancelled. Throws `WaitTimeout`. */
  async wait(operationId: string, { timeout, signal }: WaitOptions = {}): Promise<Operation> {
    const end = timeout === undefined ? Infinity : Date.now() + timeout;
    for (let pause = 50; ; pause = Math.min(1_000, pause * 2)) {
      const operation = await this.get(operationId, signal ? { signal } : {});
      if (operation.finished_at !== null) return operation;
      if (Date.now() + pause >= end) {
        throw new WaitTimeout(`Operation ${operationId} had not ended after ${timeout} ms`, "wait_timeout");
      }
      await sleep(pause, undefined, { signal });
    }
  }
}

export class Client extends Namespaces {
  override readonly jobs: Jobs;
  override readonly events: Events;
  override readonly operations: Operations;
  override readonly reservations: Reservations;
  readonly #transport: Transport;

  constructor(options: TransportOptions = {}) {
    const transport = new Transport(options);
    super(transport);
    this.#transport = transport;
    this.jobs = new Jobs(transport);
    this.events = new Events(transport);
    this.operations = new Operations(transport);
    this.reservations = new Reservations(transport);
  }

  /** Enqueue a job. Safe to repeat after a lost connection: each call carries an idempotency key. */
  async enqueue(kind: string, payload: unknown = {}, options: JobOptions = {}): Promise<JobHandle> {
    const { key, ...rest } = options;
    const request = {
      method: "POST" as const,
      path: "/jobs",
      body: { kind, payload, ...rest },
      headers: { "Idempotency-Key": key ?? newKey() },
      repeatable: true,
    };
    return new JobHandle(this.jobs, ours(key, await this.#transport.ask(decodeAccepted, request)));
  }

  /** Enqueue up to 1,000 jobs in one transaction. The handles are in the order of the calls. */
  async enqueueMany(calls: readonly Call[]): Promise<JobHandle[]> {
    if (calls.length === 0) return [];
    const jobs = calls.map((call) => ({ ...call, payload: call.payload ?? {}, key: call.key ?? newKey() }));
    const request = { method: "POST" as const, path: "/jobs/batch", body: { jobs }, repeatable: true };
    const { items } = await this.#transport.ask(decodeBatch, request);
    if (items.length !== calls.length) throw unexpected(`${items.length} results for ${calls.length} jobs`);
    return items.map((item, n) => new JobHandle(this.jobs, ours(calls[n]?.key, item)));
  }

  /** Wait for a job and return the handler's result. Throws `JobFailed` and `WaitTimeout`. */
  wait(jobId: string, options: WaitOptions = {}): Promise<unknown> {
    return this.jobs.handle(jobId).result(options);
  }

  /** Send an event, for jobs that wait for it. With a `key`, sending it again has no effect. */
  sendEvent(name: string, data: Record<string, unknown> = {}, options: Omit<SendEventInput, "name" | "data"> = {}): Promise<SentResult> {
    return this.events.send({ name, data, ...options });
  }

  /** A worker for these handlers: `await client.worker({ handlers: { resize } }).run()`. */
  worker(options: WorkerOptions): Worker {
    return new Worker(this.leases, options);
  }
}

const decodeBatch = record<Page<ReturnType<typeof decodeEnqueueResult>>>(() => ({ items: list(decodeEnqueueResult), next: nullable(text) }));
