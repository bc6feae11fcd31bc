// For whoever runs the work: schedules, dead letters, queues.

import { z } from "zod";

import { NotFound } from "./errors.js";
import { every } from "./pages.js";
import * as schemas from "./schemas.js";
import type { DeadLetterGroup, Operation, Pause, Schedule } from "./schemas.js";
import type { Transport } from "./transport.js";

/** When, and what is made then: a `kind` or a `template`. */
export interface ScheduleDefinition {
  /** `0 9 * * MON-FRI`, `@daily`, `every 15m`. */
  timing: string;
  /** The zone the times are in: `Europe/Paris`. */
  tz?: string;
  kind?: string;
  template?: string;
  payload?: Record<string, unknown>;
  /** What becomes of times that nobody was there for. */
  missed?: "skip" | "once" | "all";
  /** What becomes of a time while the job of the one before runs. */
  overlap?: "allow" | "skip" | "queue";
  /** Seconds, or text such as `90s`. */
  jitter?: number | string;
  queue?: string;
  priority?: number;
  tags?: string[];
}

export interface SchedulesWanted {
  state?: "active" | "paused" | "ended";
  kind?: string;
}

export interface GroupsWanted {
  kind?: string;
  queue?: string;
  text?: string;
  since?: string;
  /** Those seen last first, or the largest. */
  order?: "last" | "count";
  /** Also those that have nothing open any more. */
  resolved?: boolean;
}

/** Times at which jobs are made by themselves. */
export class Schedules {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** By their names, read page by page as you go. */
  list(wanted: SchedulesWanted = {}): AsyncGenerator<Schedule, void, undefined> {
    return every(this.#transport, schemas.scheduleSchema, "/schedules", { ...wanted });
  }

  /** The schedule, or undefined when there is none of this name in the token's tenant. */
  async get(name: string): Promise<Schedule | undefined> {
    return orNone(this.#transport.ask(schemas.scheduleSchema, { method: "GET", path: schedule(name) }));
  }

  create(name: string, definition: ScheduleDefinition): Promise<Schedule> {
    const body = { name, ...definition };
    return this.#transport.ask(schemas.scheduleSchema, { method: "POST", path: "/schedules", body });
  }

  /** Fire nothing until it is resumed. */
  pause(name: string): Promise<Schedule> {
    return this.#transport.ask(schemas.scheduleSchema, { method: "POST", path: `${schedule(name)}/pause` });
  }

  resume(name: string): Promise<Schedule> {
    return this.#transport.ask(schemas.scheduleSchema, { method: "POST", path: `${schedule(name)}/resume` });
  }

  /** Run it now, besides its times; the id of the job. One that allows no two at once is refused while a job of it
   * runs, unless `anyway`. */
  async runNow(name: string, options: { anyway?: boolean } = {}): Promise<string> {
    const request = { method: "POST" as const, path: `${schedule(name)}/run-now`, query: { ...options } };
    return (await this.#transport.ask(z.object({ job_id: z.string() }), request)).job_id;
  }

  /** It fires no more and its name is free; jobs and history stay. */
  async delete(name: string): Promise<void> {
    await this.#transport.ask(z.null(), { method: "DELETE", path: schedule(name) });
  }
}

/** What failed for good, in groups that failed for one reason, until somebody resolves them. */
export class DeadLetters {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  groups(wanted: GroupsWanted = {}): AsyncGenerator<DeadLetterGroup, void, undefined> {
    return every(this.#transport, schemas.deadLetterGroupSchema, "/dead-letters", { ...wanted });
  }

  async get(group: string): Promise<DeadLetterGroup | undefined> {
    return orNone(this.#transport.ask(schemas.deadLetterGroupSchema, { method: "GET", path: letters(group) }));
  }

  /** Put all of a group back into their queues, at most `rate` a second: an operation, which goes on by itself. */
  redrive(group: string, options: { reason?: string; rate?: number; max_attempts?: number } = {}): Promise<Operation> {
    return this.#operate(group, "redrive", options);
  }

  /** Give all of a group up for good. */
  discard(group: string, reason: string, options: { rate?: number } = {}): Promise<Operation> {
    return this.#operate(group, "discard", { reason, ...options });
  }

  /** How far an operation has come. */
  operation(id: string): Promise<Operation> {
    const path = `/operations/${encodeURIComponent(id)}`;
    return this.#transport.ask(schemas.operationSchema, { method: "GET", path });
  }

  #operate(group: string, word: string, body: object): Promise<Operation> {
    return this.#transport.ask(schemas.operationSchema, { method: "POST", path: `${letters(group)}/${word}`, body });
  }
}

/** What is taken from a queue, or not. */
export class Queues {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Begin nothing more of it, until it is resumed or `until` is there; what runs may end. */
  pause(
    queue: string,
    reason: string,
    options: { until?: Date | string; refuse_enqueue?: boolean } = {},
  ): Promise<Pause> {
    const body = { queue, reason, ...options };
    return this.#transport.ask(schemas.pauseSchema, { method: "POST", path: "/pauses", body });
  }

  async resume(queue: string): Promise<void> {
    await this.#transport.ask(z.null(), { method: "POST", path: "/pauses/resume", body: { queue } });
  }

  /** What is paused: queues, and whatever else was. */
  paused(): AsyncGenerator<Pause, void, undefined> {
    return every(this.#transport, schemas.pauseSchema, "/pauses");
  }
}

async function orNone<T>(asked: Promise<T>): Promise<T | undefined> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof NotFound) return undefined;
    throw error;
  }
}

function schedule(name: string): string {
  return `/schedules/${encodeURIComponent(name)}`;
}

function letters(group: string): string {
  return `/dead-letters/${encodeURIComponent(group)}`;
}
