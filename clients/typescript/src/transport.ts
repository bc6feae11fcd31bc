// Asking the service: the token, time limits, and the retries that are safe.

import { randomInt } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { z } from "zod";

import { errorOf, HoldfastError, mayPass, unavailable, unexpected } from "./errors.js";
import { problemSchema } from "./schemas.js";

export interface TransportOptions {
  /** Where the service is, with the path it is mounted below: `https://jobs.example.com/holdfast`. */
  url?: string;
  token?: string;
  /** For tokens of every tenant: whose jobs it is about. */
  tenant?: string;
  /** Milliseconds an answer may take. */
  timeout?: number;
  /** How often a request is sent in all, where that is safe. */
  tries?: number;
  fetch?: typeof fetch;
}

export interface Request {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: Record<string, string>;
  /** Carried out twice it does no more than once. Reads are; the rest says so. */
  repeatable?: boolean;
  /** Milliseconds beyond the usual. */
  patience?: number;
  /** Milliseconds for one try, where the usual would be too long. */
  within?: number;
  /** When nobody waits for an answer any more, nor asks again; as `Date.now()` says it. */
  until?: number | undefined;
  signal?: AbortSignal | undefined;
}

const AGAIN = new Set([429, 502, 503, 504]);
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 8_000;
const OBEYED = 60_000;
const LARGEST = 64 * 1024 * 1024;
const SHOWN = 200;

export class Transport {
  readonly origin: string;
  readonly base: string;
  readonly timeout: number;
  readonly tries: number;
  readonly #token: string;
  readonly #tenant: string | undefined;
  readonly #fetch: typeof fetch;

  constructor(options: TransportOptions = {}) {
    const given = options.url ?? process.env.HOLDFAST_API_URL;
    const url = given && URL.canParse(given) ? new URL(given) : undefined;
    if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
      throw new HoldfastError("this is not the URL of a service", "invalid_url");
    }
    this.origin = url.origin;
    this.base = url.origin + url.pathname.replace(/\/+$/, "");
    this.timeout = options.timeout ?? 30_000;
    this.tries = options.tries ?? 5;
    this.#token = options.token ?? process.env.HOLDFAST_API_TOKEN ?? "";
    this.#tenant = options.tenant;
    this.#fetch = options.fetch ?? fetch;
  }

  /** The answer, checked against what it should be. */
  async ask<Out>(schema: z.ZodType<Out>, request: Request): Promise<Out> {
    const [response, text] = await this.#answer(request, bounded);
    let found: unknown = null;
    if (text !== "") {
      try {
        found = JSON.parse(text);
      } catch {
        throw unexpected(this.#strange(response, text), response.status);
      }
    }
    const read = schema.safeParse(found);
    if (read.success) return read.data;
    const issue = read.error.issues[0];
    const where = issue?.path.map(String).join(".");
    throw unexpected(`the answer to ${request.method} ${request.path} cannot be read: ${where}: ${issue?.message}`);
  }

  /** A good answer, of which `read` has been read; anything else is thrown. What is safe to repeat is asked again. */
  async #answer<T>(request: Request, read: (response: Response) => Promise<T>): Promise<[Response, T]> {
    const repeatable = request.repeatable ?? request.method === "GET";
    for (let tried = 1; ; tried++) {
      let response: Response | undefined;
      let failure: HoldfastError;
      try {
        const got = await this.#once(request);
        if (got.ok) return [got, await this.#within(request, () => read(got))];
        response = got;
        failure = await this.#failure(request, got);
      } catch (error) {
        request.signal?.throwIfAborted();
        if (error instanceof HoldfastError) throw error;
        failure = unavailable(`${this.base} did not answer ${request.method} ${request.path}: ${reason(error)}`);
      }
      const pause = repeatable && tried < this.tries ? pauseAfter(response, failure, tried) : undefined;
      if (pause === undefined || Date.now() + pause >= (request.until ?? Infinity)) throw failure;
      await sleep(pause, undefined, { signal: request.signal });
    }
  }

  /** A stream of server-sent events. */
  async open(request: Request): Promise<Response> {
    const [response] = await this.#answer(request, () => Promise.resolve());
    if ((response.headers.get("content-type") ?? "").includes("text/event-stream")) return response;
    const text = await this.#within(request, () => bounded(response)).catch(() => "");
    throw unexpected(this.#strange(response, text), response.status);
  }

  /** Milliseconds until a stream is opened again. One that ends without a word is no better than no answer: it is tried
   * as often, and then given up. */
  beforeTheNext(stream: { retry: number | undefined }, silent: number): number {
    if (silent === 0) return Math.min(Math.max(stream.retry ?? 0, FIRST_PAUSE), LONGEST_PAUSE);
    if (silent < this.tries) return oursAfter(silent);
    throw unavailable(`${this.base} ended the stream ${silent} times before anything was told`);
  }

  /** Its bytes as they come; it ends when the connection does, or when nothing came for as long as an answer may take. */
  async *chunks(response: Response, signal: AbortSignal): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = response.body?.getReader();
    if (!reader) return;
    try {
      for (;;) {
        const request: Request = { method: "GET", path: "", signal };
        const { done, value } = await this.#within(request, () => reader.read());
        if (done) return;
        yield value as Uint8Array;
      }
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof HoldfastError) throw error; // otherwise lost: whoever follows comes back
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }

  async #once(request: Request): Promise<Response> {
    const url = new URL(`${this.base}/api/v1${request.path}`);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null) url.searchParams.append(name, word(each));
      }
    }
    const headers = new Headers({ accept: "application/json", ...request.headers });
    if (this.#token) headers.set("authorization", `Bearer ${this.#token}`);
    if (this.#tenant !== undefined) headers.set("holdfast-tenant", this.#tenant);
    const init: RequestInit = { method: request.method, headers, redirect: "manual" };
    if (request.body !== undefined) {
      headers.set("content-type", "application/json");
      init.body = JSON.stringify(request.body);
    }
    const response = await this.#within(request, (signal) => this.#fetch(url, { ...init, signal }));
    if (response.status >= 300 && response.status < 400) {
      await response.body?.cancel();
      throw new HoldfastError(`${this.base} sends requests on to another place, where the token is not for`, "redirected", {
        status: response.status,
        fix: "Give the URL at which the service itself answers.",
      });
    }
    return response;
  }

  /** Within the time an answer may take, or until the caller has had enough. */
  async #within<T>(request: Request, act: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const limit = new AbortController();
    const most = Math.min(this.timeout, request.within ?? Infinity) + (request.patience ?? 0);
    const timer = setTimeout(
      () => limit.abort(new DOMException("the time was up", "TimeoutError")),
      Math.min(most, Math.max(0, (request.until ?? Infinity) - Date.now())),
    );
    const signal = request.signal ? AbortSignal.any([limit.signal, request.signal]) : limit.signal;
    let tell = (): void => undefined;
    const over = new Promise<never>((_, reject) => {
      tell = () => reject(signal.reason);
      signal.addEventListener("abort", tell, { once: true });
    });
    try {
      return await Promise.race([act(signal), over]);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", tell);
    }
  }

  async #failure(request: Request, response: Response): Promise<HoldfastError> {
    const text = await this.#within(request, () => bounded(response)).catch(() => "");
    try {
      const problem = problemSchema.safeParse(JSON.parse(text));
      if (problem.success) {
        const { code, detail } = problem.data;
        return errorOf(response.status, { ...problem.data, detail: this.#hide(detail ?? code) });
      }
    } catch {
      // not JSON: somebody in between, or no service at all
    }
    const why = this.#strange(response, text);
    return AGAIN.has(response.status) ? unavailable(why, response.status) : unexpected(why, response.status);
  }

  #strange(response: Response, text: string): string {
    const shown = this.#hide(text.slice(0, 4 * SHOWN)).replace(/\s+/g, " ").slice(0, SHOWN);
    return `this is not what the service answers: status ${response.status}, that begins with ${JSON.stringify(shown)}`;
  }

  #hide(text: string): string {
    const hidden = this.#token ? text.replaceAll(this.#token, "hf_…") : text;
    // eslint-disable-next-line no-control-regex
    return hidden.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ").slice(0, 2_000);
  }
}

async function bounded(response: Response): Promise<string> {
  if (!response.body) return "";
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of response.body as AsyncIterable<Uint8Array>) {
    size += part.byteLength;
    if (size > LARGEST) throw unexpected(`the answer is larger than ${LARGEST} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

function oursAfter(tried: number): number {
  return Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tried - 1)) * (0.5 + randomInt(1_000) / 2_000);
}

function pauseAfter(response: Response | undefined, failure: HoldfastError, tried: number): number | undefined {
  const ours = oursAfter(tried);
  if (!response) return ours;
  // A rule that said no is an answer: what is paused, a tenant that has its fill.
  if (!AGAIN.has(response.status) || !mayPass(failure)) return undefined;
  const asked = response.headers.get("retry-after");
  if (asked === null) return ours;
  const theirs = /^\d+(\.\d+)?$/.test(asked) ? Number(asked) * 1_000 : Date.parse(asked) - Date.now();
  if (!Number.isFinite(theirs)) return ours;
  return theirs > OBEYED ? undefined : Math.max(theirs, ours);
}

function reason(error: unknown): string {
  if (error instanceof DOMException && error.name === "TimeoutError") return "the time was up";
  const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
  return cause?.code ?? (error instanceof Error ? error.message : "the connection was lost");
}

function word(value: unknown): string {
  return value instanceof Date ? value.toISOString() : String(value);
}
