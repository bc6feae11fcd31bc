// Reservations: use a resource directly while a function runs; no job starts there meanwhile.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Conflict, NotFound, Unavailable } from "./errors.js";
import { ReservationsNamespace } from "./generated/namespaces.js";
import type { Reserved } from "./generated/types.js";

/** A resource, a queue, or (with neither) everything. */
export interface HoldInput {
  resource?: string;
  queue?: string;
  reason?: string;
  /** Milliseconds after which it fails as busy; without it, it waits without limit. */
  wait?: number;
  /** Milliseconds that the reservation lasts without renewal (30,000). It is renewed while the function runs. */
  ttl?: number;
  /** Do not wait for jobs that are already running there. */
  atOnce?: boolean;
}

/** A reservation that is held. `signal` is aborted when it is lost: jobs may run there again. */
export interface Held {
  readonly id: string;
  readonly signal: AbortSignal;
}

type Renew = () => Promise<Reserved>;

const FIRST_POLLS = [100, 100, 100, 200, 200, 300];
const LATER_POLLS = 500;
const TTL = 30_000;
const ENDED = new Set(["released", "expired", "withdrawn"]);

export class Reservations extends ReservationsNamespace {
  /** Run `work` when the reservation is active and the running jobs there have ended. */
  async hold<T>(input: HoldInput, work: (held: Held) => Promise<T> | T): Promise<T> {
    const id = randomUUID();
    const ttl = input.ttl ?? TTL;
    const { resource, queue, reason } = input;
    const renew: Renew = () => this.set(id, { resource, queue, reason, ttl: ttl / 1_000 });

    let until: number;
    try {
      until = await waitUntilHeld(renew, input, ttl);
    } catch (error) {
      await this.release(id, { reason: failureOf(error) }).catch(ignore); // without a response it expires
      throw error;
    }
    const lost = new AbortController();
    const over = new AbortController();
    const renewal = keepRenewing(renew, ttl, until, lost, over.signal);
    try {
      const result = await work({ id, signal: lost.signal });
      over.abort();
      await renewal;
      await this.release(id, { reason: "released" }).catch((error: unknown) => {
        if (!(error instanceof NotFound)) throw error;
        lost.abort();
      });
      if (lost.signal.aborted) {
        throw new Conflict("The reservation ended before the work did: jobs may have run meanwhile", "reservation_lost");
      }
      return result;
    } catch (error) {
      over.abort();
      await renewal;
      await this.release(id, { reason: failureOf(error) }).catch(ignore);
      throw error;
    }
  }
}

/** Wait for the reservation; returns the time until which it is held. */
async function waitUntilHeld(renew: Renew, input: HoldInput, ttl: number): Promise<number> {
  const end = input.wait === undefined ? Infinity : Date.now() + input.wait;
  for (let n = 0; ; n += 1) {
    const requested = Date.now();
    const reservation = await renew();
    if (ENDED.has(reservation.state)) throw new Conflict("Someone else ended the reservation", "reservation_lost");
    const held = reservation.state === "active" && (input.atOnce || reservation.running === 0);
    if (held && Date.now() < requested + ttl) return requested + ttl; // a slower response may describe an expired one
    if (Date.now() >= end) throw busy(reservation);
    await sleep(Math.min(FIRST_POLLS[n] ?? LATER_POLLS, ttl / 3));
  }
}

/** Renew until `over`, also across a short outage of the server. */
async function keepRenewing(renew: Renew, ttl: number, held: number, lost: AbortController, over: AbortSignal): Promise<void> {
  let until = held;
  for (;;) {
    await sleep(ttl / 3, undefined, { signal: over, ref: false }).catch(ignore);
    if (over.aborted) return;
    try {
      const requested = Date.now();
      if ((await renew()).state !== "active") return lost.abort();
      until = requested + ttl;
    } catch (error) {
      if (!(error instanceof Unavailable) || Date.now() >= until) return lost.abort();
    }
  }
}

function busy({ scope, name, state, running, ahead }: Reserved): Conflict {
  const what = scope === "all" ? "everything" : `${scope} ${name}`;
  const why = state === "active" ? `${running} jobs are still running there` : `${ahead} reservations are before this one`;
  return new Conflict(`Could not reserve ${what}: ${why}`, "reservation_busy");
}

function failureOf(error: unknown): string {
  return `ended with ${error instanceof Error ? error.name : "an error"}`;
}

function ignore(): void {}
