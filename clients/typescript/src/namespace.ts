// Shared by the namespaces of the client: the transport, lists that are read page by page, and idempotency keys.

import { randomUUID } from "node:crypto";

import { list, nullable, record, text, type Decoder } from "./decoder.js";
import { unexpected } from "./errors.js";
import type { Request, Transport } from "./transport.js";

/** Options of one call. */
export interface CallOptions {
  /** Abort the request. Whether the server has carried it out is then unknown. */
  signal?: AbortSignal;
  /** Milliseconds for each attempt, instead of the client's `timeout`. */
  timeout?: number;
  /** The time (as of `Date.now()`) after which the caller no longer waits for a response or a retry. */
  until?: number;
}

export interface Page<T> {
  items: T[];
  /** The `after` of the next page; null on the last one. */
  next: string | null;
}

const PAGE_SIZE = 200;

export abstract class Namespace {
  // Private, so that printing a client shows neither the transport nor its token.
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  protected get transport(): Transport {
    return this.#transport;
  }

  /** A list whose route has pages. */
  protected pages<T>(item: Decoder<T>, request: Request): Pages<T> {
    return new Pages(this.#transport, item, request, true);
  }

  /** A list that comes in one response. */
  protected whole<T>(item: Decoder<T>, request: Request): Pages<T> {
    return new Pages(this.#transport, item, request, false);
  }
}

/** A list. Iterate over it with `for await`, which reads pages as needed, or read it whole with `all()`. */
export class Pages<T> implements AsyncIterable<T> {
  readonly #transport: Transport;
  readonly #decoder: Decoder<Page<T>>;
  readonly #request: Request;
  readonly #paged: boolean;

  constructor(transport: Transport, item: Decoder<T>, request: Request, paged: boolean) {
    this.#transport = transport;
    this.#decoder = record<Page<T>>(() => ({ items: list(item), next: nullable(text) }));
    this.#request = request;
    this.#paged = paged;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    if (!this.#paged) return yield* (await this.page()).items;
    const { limit, after: start } = this.#request.query ?? {};
    const total = typeof limit === "number" ? limit : Infinity;
    let after = start as string | undefined;
    for (let read = 0; read < total; ) {
      const { items, next } = await this.page({ after, limit: Math.min(PAGE_SIZE, total - read) });
      yield* items;
      read += items.length;
      // A page of events may be empty without being the last one: its position has then advanced.
      if (next === null || (items.length === 0 && next === after)) return;
      if (next === after) throw unexpected("the next page is the same as this one");
      after = next;
    }
  }

  /** All items in one array. */
  async all(): Promise<T[]> {
    const items: T[] = [];
    for await (const item of this) items.push(item);
    return items;
  }

  /** The first item, or undefined. */
  async first(): Promise<T | undefined> {
    for await (const item of this) return item;
    return undefined;
  }

  /** One page, for a user interface with a "next" button. */
  page(position: { after?: string | undefined; limit?: number | undefined } = {}): Promise<Page<T>> {
    return this.#transport.ask(this.#decoder, { ...this.#request, query: { ...this.#request.query, ...position } });
  }
}

/** A path with its parameters escaped: path`/jobs/${id}`. */
export function path(parts: TemplateStringsArray, ...values: string[]): string {
  return parts.reduce((result, part, n) => result + encodeURIComponent(checked(values[n - 1] as string)) + part);
}

/** "." and ".." as segments of a path would name another route: URLs are resolved before they are sent. */
function checked(value: string): string {
  if (typeof value !== "string" || value === "" || value === "." || value === "..") {
    throw new TypeError(`expected a name or an id, got ${JSON.stringify(value)}`);
  }
  return value;
}

export function newKey(): string {
  return `ts-${randomUUID()}`;
}

/** With a generated key, a duplicate is an earlier request of this client whose response was lost: count it as created. */
export function ours<T extends { created: boolean; reason: string | null }>(key: string | null | undefined, response: T): T {
  return key === undefined && response.reason === "duplicate_key" ? { ...response, created: true, reason: null } : response;
}
