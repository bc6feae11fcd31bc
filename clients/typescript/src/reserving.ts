// Using something directly while no job is begun there, for as long as a function runs.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

import { Conflict, NotFound, Unavailable } from "./errors.js";
import * as schemas from "./schemas.js";
import type { Reserved } from "./schemas.js";
import type { Transport } from "./transport.js";

/** A resource, a queue, or (with neither) everything. */
export interface Reserve {
  resource?: string;
  queue?: string;
  reason?: string;
  /** Milliseconds until it is refused as busy; without it, as long as it takes. */
  wait?: number;
  /** Milliseconds it is kept without being asked for again (30,000): it is, while the function runs. */
  ttl?: number;
  /** Do not wait for jobs that were begun before. */
  atOnce?: boolean;
}

/** What is held. `signal` is aborted when it was lost: jobs may run there again. */
export interface Held {
  readonly id: string;
  readonly signal: AbortSignal;
}

const LOOK_EVERY = [100, 100, 100, 200, 200, 300];
const LOOK_LATER = 500;
const TTL = 30_000;
const OVER = new Set(["released", "expired", "withdrawn"]);

export async function reserve<T>(transport: Transport, wanted: Reserve, work: (held: Held) => Promise<T> | T): Promise<T> {
  const id = randomUUID();
  const ttl = wanted.ttl ?? TTL;
  const path = `/reservations/${id}`;
  const body = { resource: wanted.resource, queue: wanted.queue, reason: wanted.reason, ttl: ttl / 1000 };
  const ask = (): Promise<Reserved> =>
    transport.ask(schemas.reservedSchema, { method: "PUT", path, body, repeatable: true });
  const release = async (reason: string): Promise<void> => {
    await transport.ask(z.null(), { method: "DELETE", path, query: { reason } });
  };

  let until: number;
  try {
    until = await turn(ask, wanted, ttl);
  } catch (error) {
    await release(left(error)).catch(ignored); // nothing is there, or nobody answers: then it runs out
    throw error;
  }
  const lost = new AbortController();
  const over = new AbortController();
  const keeping = keep(ask, ttl, until, lost, over.signal);
  try {
    const answer = await work({ id, signal: lost.signal });
    over.abort();
    await keeping;
    await release("released").catch((error: unknown) => {
      if (!(error instanceof NotFound)) throw error;
      lost.abort();
    });
    if (lost.signal.aborted) throw outlived();
    return answer;
  } catch (error) {
    over.abort();
    await keeping;
    await release(left(error)).catch(ignored);
    throw error;
  }
}

/** Wait for it; answers until when it is held. */
async function turn(ask: () => Promise<Reserved>, wanted: Reserve, ttl: number): Promise<number> {
  const end = wanted.wait === undefined ? undefined : Date.now() + wanted.wait;
  for (let n = 0; ; n += 1) {
    const asked = Date.now();
    const found = await ask();
    if (OVER.has(found.state)) throw new Conflict("the reservation was ended by somebody else", "reservation_lost");
    const begun = found.state === "active" && (wanted.atOnce || found.running === 0);
    if (begun && Date.now() < asked + ttl) return asked + ttl; // else the answer took too long, and it may have run out
    if (end !== undefined && Date.now() >= end) throw busy(found);
    await sleep(Math.min(LOOK_EVERY[n] ?? LOOK_LATER, ttl / 3));
  }
}

/** Ask for it again and again, until `over`; a service that is away for a moment is asked again. */
async function keep(
  ask: () => Promise<Reserved>,
  ttl: number,
  held: number,
  lost: AbortController,
  over: AbortSignal,
): Promise<void> {
  let until = held;
  for (;;) {
    await sleep(ttl / 3, undefined, { signal: over, ref: false }).catch(ignored);
    if (over.aborted) return;
    try {
      const asked = Date.now();
      if ((await ask()).state !== "active") return lost.abort();
      until = asked + ttl;
    } catch (error) {
      if (!(error instanceof Unavailable) || Date.now() >= until) return lost.abort();
    }
  }
}

function busy(found: Reserved): Conflict {
  const what = found.scope === "all" ? "everything" : `${found.scope} ${found.name}`;
  const why =
    found.state === "active" ? `${found.running} jobs are still running there` : `${found.ahead} others are before this one`;
  return new Conflict(`${what} could not be reserved: ${why}`, "reservation_busy");
}

function outlived(): Conflict {
  return new Conflict("the reservation had ended before the work did: jobs may have run meanwhile", "reservation_lost");
}

function left(error: unknown): string {
  return `left with ${error instanceof Error ? error.name : "an error"}`;
}

function ignored(): void {}
