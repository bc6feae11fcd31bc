// Requests: the token, time limits, and retries where repeating is safe.

import { randomInt } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { map, anything, Mismatch, type Decoder } from "./decoder.js";
import { errorOf, HoldfastError, isTransient, problemOf, unavailable, unexpected } from "./errors.js";

export interface TransportOptions {
  /** URL of the server, with the path it is mounted at: `https://jobs.example.com/holdfast`. Default: HOLDFAST_API_URL. */
  url?: string;
  /** API token. Default: HOLDFAST_API_TOKEN. */
  token?: string;
  /** The tenant to act in, for a token of all tenants. */
  tenant?: string;
  /** Milliseconds that a response may take (30,000). */
  timeout?: number;
  /** Maximum number of times a request is sent, if repeating is safe (5). */
  tries?: number;
  /** Another `fetch`, for example one with a proxy. */
  fetch?: typeof fetch;
}

export interface Request {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: Record<string, string>;
  /** Whether carrying it out twice has the same effect as once. Default: only for GET. */
  repeatable?: boolean;
  /** Milliseconds in addition to the timeout, for a request that waits at the server. */
  extraTimeout?: number;
  /** Milliseconds for each attempt, instead of the client's timeout. */
  timeout?: number | undefined;
  /** The time (as of `Date.now()`) after which the caller no longer waits for a response or a retry. */
  until?: number | undefined;
  signal?: AbortSignal | undefined;
}

const RETRIED = new Set([429, 502, 503, 504]);
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 8_000;
const LONGEST_RETRY_AFTER = 60_000;
const LARGEST_RESPONSE = 64 * 1024 * 1024;
const EXCERPT = 200;

export class Transport {
  readonly origin: string;
  readonly base: string;
  readonly timeout: number;
  readonly tries: number;
  readonly #token: string;
  readonly #tenant: string | undefined;
  readonly #fetch: typeof fetch;

  constructor(options: TransportOptions = {}) {
    const address = options.url ?? process.env.HOLDFAST_API_URL;
    const url = address && URL.canParse(address) ? new URL(address) : undefined;
    if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
      throw new HoldfastError("Expected the http(s) URL of a Holdfast server", "invalid_url", {
        fix: "Pass `url`, or set HOLDFAST_API_URL.",
      });
    }
    this.origin = url.origin;
    this.base = url.origin + url.pathname.replace(/\/+$/, "");
    this.timeout = options.timeout ?? 30_000;
    this.tries = options.tries ?? 5;
    this.#token = options.token ?? process.env.HOLDFAST_API_TOKEN ?? "";
    this.#tenant = options.tenant;
    this.#fetch = options.fetch ?? fetch;
  }

  /** Send a request and decode its response. */
  async ask<T>(decode: Decoder<T>, request: Request): Promise<T> {
    const [response, body] = await this.#request(request, wholeBody);
    const text = body.toString("utf8");
    let value: unknown = null;
    if (text !== "") {
      try {
        value = JSON.parse(text);
      } catch {
        throw unexpected(this.#notOurs(response, text), response.status);
      }
    }
    try {
      return decode(value, "");
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      throw unexpected(`cannot read the response to ${request.method} ${request.path}: ${error.message}`, response.status);
    }
  }

  /** Send a request whose response is a file. */
  async bytes(request: Request): Promise<Uint8Array> {
    const [, body] = await this.#request({ ...request, headers: { accept: "*/*" } }, wholeBody);
    return new Uint8Array(body);
  }

  /** A successful response and the result of `read`. Retries repeatable requests; throws all other failures. */
  async #request<T>(request: Request, read: (response: Response) => Promise<T>): Promise<[Response, T]> {
    const repeatable = request.repeatable ?? request.method === "GET";
    for (let tried = 1; ; tried++) {
      let failed: Response | undefined;
      let failure: HoldfastError;
      try {
        const response = await this.#send(request);
        if (response.ok) return [response, await this.#within(request, () => read(response))];
        failed = response;
        failure = await this.#failure(request, response);
      } catch (error) {
        request.signal?.throwIfAborted();
        if (error instanceof HoldfastError) throw error;
        failure = unavailable(`no response from ${this.base} to ${request.method} ${request.path}: ${reason(error)}`);
      }
      const pause = repeatable && tried < this.tries ? pauseAfter(failed, failure, tried) : undefined;
      if (pause === undefined || Date.now() + pause >= (request.until ?? Infinity)) throw failure;
      await sleep(pause, undefined, { signal: request.signal });
    }
  }

  /** Open a stream of server-sent events. */
  async open(request: Request): Promise<Response> {
    const [response] = await this.#request(request, () => Promise.resolve());
    if ((response.headers.get("content-type") ?? "").includes("text/event-stream")) return response;
    const body = await this.#within(request, () => wholeBody(response)).catch(() => "");
    throw unexpected(this.#notOurs(response, String(body)), response.status);
  }

  /** Milliseconds before a stream is opened again. A stream that ends before its first message counts as no response, and
   * fails after as many attempts. */
  reconnectDelay(stream: { retry: number | undefined }, silent: number): number {
    if (silent === 0) return Math.min(Math.max(stream.retry ?? 0, FIRST_PAUSE), LONGEST_PAUSE);
    if (silent < this.tries) return backoff(silent);
    throw unavailable(`${this.base} ended the stream ${silent} times before the first event`);
  }

  /** The bytes of a stream. It ends with the connection, or when nothing arrives within the timeout. */
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
      if (error instanceof HoldfastError) throw error; // otherwise the connection was lost: the caller reconnects
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }

  async #send(request: Request): Promise<Response> {
    const url = new URL(`${this.base}/api/v1${request.path}`);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null) url.searchParams.append(name, queryValue(each));
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
      throw new HoldfastError(`${this.base} redirects; the token is not sent elsewhere`, "redirected", {
        status: response.status,
        fix: "Use the URL of the server itself.",
      });
    }
    return response;
  }

  /** Run `act` within the time limit, and until the caller's signal. */
  async #within<T>(request: Request, act: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const limit = new AbortController();
    const timeout = (request.timeout ?? this.timeout) + (request.extraTimeout ?? 0);
    const timer = setTimeout(
      () => limit.abort(new DOMException("timed out", "TimeoutError")),
      Math.min(timeout, Math.max(0, (request.until ?? Infinity) - Date.now())),
    );
    const signal = request.signal ? AbortSignal.any([limit.signal, request.signal]) : limit.signal;
    let onAbort = (): void => undefined;
    const aborted = new Promise<never>((_, reject) => {
      onAbort = () => reject(signal.reason);
      signal.addEventListener("abort", onAbort, { once: true });
    });
    try {
      return await Promise.race([act(signal), aborted]);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
    }
  }

  async #failure(request: Request, response: Response): Promise<HoldfastError> {
    const text = String(await this.#within(request, () => wholeBody(response)).catch(() => ""));
    try {
      const problem = problemOf(map(anything)(JSON.parse(text), ""));
      return errorOf(response.status, { ...problem, detail: this.#redact(problem.detail ?? problem.code) });
    } catch {
      // Not a problem document: a proxy in between, or another server.
    }
    const why = this.#notOurs(response, text);
    return RETRIED.has(response.status) ? unavailable(why, response.status) : unexpected(why, response.status);
  }

  #notOurs(response: Response, text: string): string {
    const shown = this.#redact(text.slice(0, 4 * EXCERPT)).replace(/\s+/g, " ").slice(0, EXCERPT);
    return `not a response of a Holdfast server: status ${response.status}, beginning with ${JSON.stringify(shown)}`;
  }

  #redact(text: string): string {
    const hidden = this.#token ? text.replaceAll(this.#token, "hf_…") : text;
    return hidden.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ").slice(0, 2_000);
  }
}

async function wholeBody(response: Response): Promise<Buffer> {
  if (!response.body) return Buffer.alloc(0);
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of response.body as AsyncIterable<Uint8Array>) {
    size += part.byteLength;
    if (size > LARGEST_RESPONSE) throw unexpected(`the response is larger than ${LARGEST_RESPONSE} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

function backoff(tried: number): number {
  return Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tried - 1)) * (0.5 + randomInt(1_000) / 2_000);
}

function pauseAfter(response: Response | undefined, failure: HoldfastError, tried: number): number | undefined {
  const own = backoff(tried);
  if (!response) return own;
  // A refusal (a paused queue, a full tenant) is final.
  if (!RETRIED.has(response.status) || !isTransient(failure)) return undefined;
  const header = response.headers.get("retry-after");
  if (header === null) return own;
  const requested = /^\d+(\.\d+)?$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - Date.now();
  if (!Number.isFinite(requested)) return own;
  return requested > LONGEST_RETRY_AFTER ? undefined : Math.max(requested, own);
}

function reason(error: unknown): string {
  if (error instanceof DOMException && error.name === "TimeoutError") return "timed out";
  const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
  return cause?.code ?? (error instanceof Error ? error.message : "the connection was lost");
}

function queryValue(value: unknown): string {
  return value instanceof Date ? value.toISOString() : String(value);
}
