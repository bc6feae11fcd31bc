// Following the ledger: events as they happen, over connections that may break.

import { setTimeout as sleep } from "node:timers/promises";

import { Mismatch } from "./decoder.js";
import { unexpected } from "./errors.js";
import { EventsNamespace } from "./generated/namespaces.js";
import { decodeEvent, type Event } from "./generated/types.js";
import { Parser } from "./sse.js";

/** Conditions that all have to match; several values of one are alternatives. */
export interface FollowInput {
  kind?: string | string[];
  type?: string | string[];
  job?: string | string[];
  queue?: string | string[];
  /** The `cursor` of an event to continue after; without it, from now on. */
  after?: string;
  /** What to do about events that retention has removed: throw `EventsGone` (`tell`), or leave them out. */
  gaps?: "tell" | "skip";
  signal?: AbortSignal;
}

/** Number of recent events that are remembered, so that none is delivered twice after a reconnection. */
const REMEMBERED = 5_000;

export class Events extends EventsNamespace {
  /** Events as they happen, until the signal. Reconnects at its last position: no event is missed or repeated. Throws
   * `EventsGone` if retention has removed events that were not read. */
  async *follow(input: FollowInput = {}): AsyncGenerator<Event, void, undefined> {
    const { after, signal, ...query } = input;
    let position = after;
    let silent = 0;
    const seen = new Set<number>();
    while (!signal?.aborted) {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (position !== undefined) headers["last-event-id"] = position;
      const stop = new AbortController();
      const until = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
      let parser = new Parser(position);
      try {
        const request = { method: "GET" as const, path: "/events/stream", query, headers, signal: until };
        const response = await this.transport.open(request);
        // "From now on" stays fixed even if the connection is lost before the first event.
        position ||= response.headers.get("holdfast-cursor") ?? undefined;
        parser = new Parser(position);
        for await (const chunk of this.transport.chunks(response, until)) {
          for (const message of parser.feed(chunk)) {
            if (!message.event.startsWith("job.")) continue;
            const event = decodeEvent(JSON.parse(message.data), "");
            if (seen.has(event.seq)) continue;
            seen.add(event.seq);
            if (seen.size > REMEMBERED) seen.delete(seen.values().next().value as number);
            yield event;
          }
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (error instanceof Mismatch || error instanceof SyntaxError || error instanceof RangeError) {
          throw unexpected(`cannot read an event of the stream: ${error.message}`);
        }
        throw error;
      } finally {
        stop.abort();
      }
      position = parser.lastId ?? position;
      silent = parser.received ? 0 : silent + 1;
      await sleep(this.transport.reconnectDelay(parser, silent), undefined, { signal }).catch(() => undefined);
    }
  }
}
