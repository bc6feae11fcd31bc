// What the namespaces of the client share: a transport, lists read page by page, and idempotency keys.

import { randomUUID } from "node:crypto";

import { list, nullable, record, text, type Decoder } from "./decoder.js";
import { unexpected } from "./errors.js";
import type { Request, Transport } from "./transport.js";

/** Options of one call. */
export interface CallOptions {
  /** Abort the request. Whether the server has carried it out is then unknown. */
  signal?: AbortSignal;
  /** Milliseconds for each try, instead of the client's `timeout`. */
  timeout?: number;
  /** The time (as of `Date.now()`) after which neither an answer nor a retry is of use. */
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

  /** A list that comes in one answer. */
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
    const most = typeof limit === "number" ? limit : Infinity;
    let after = start as string | undefined;
    for (let read = 0; read < most; ) {
      const { items, next } = await this.page({ after, limit: Math.min(PAGE_SIZE, most - read) });
      yield* items;
      read += items.length;
      // A page of events may be empty and not the last one: its position has then moved.
      if (next === null || (items.length === 0 && next === after)) return;
      if (next === after) throw unexpected("the next page is the same as this one");
      after = next;
    }
  }

  /** All items in one array. */
  async all(): Promise<T[]> {
    const found: T[] = [];
    for await (const item of this) found.push(item);
    return found;
  }

  /** The first item, or undefined. */
  async first(): Promise<T | undefined> {
    for await (const item of this) return item;
    return undefined;
  }

  /** One page, for a user interface with a "next" button of its own. */
  page(position: { after?: string | undefined; limit?: number | undefined } = {}): Promise<Page<T>> {
    return this.#transport.ask(this.#decoder, { ...this.#request, query: { ...this.#request.query, ...position } });
  }
}

/** A path with its parameters escaped: path`/jobs/${id}`. */
export function path(words: TemplateStringsArray, ...values: string[]): string {
  return words.reduce((found, word, n) => found + encodeURIComponent(checked(values[n - 1] as string)) + word);
}

/** "." and ".." as parts of a path would name another route: URLs are resolved before they are sent. */
function checked(value: string): string {
  if (typeof value !== "string" || value === "" || value === "." || value === "..") {
    throw new TypeError(`expected a name or an id, got ${JSON.stringify(value)}`);
  }
  return value;
}

export function newKey(): string {
  return `ts-${randomUUID()}`;
}

/** With a key that we made, a duplicate is our own earlier request whose answer was lost. */
export function ours<T extends { created: boolean; reason: string | null }>(key: string | null | undefined, answer: T): T {
  return key === undefined && answer.reason === "duplicate_key" ? { ...answer, created: true, reason: null } : answer;
}
