// The worker: completes jobs, renews its lease, survives outages, logs, stops on SIGTERM, and may be killed.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Client, type Context, type Handler, JobFailed, type LogLine, Reject, Retry, Snooze } from "../src/index.js";

const client = new Client();

async function made(kind: string, payload: unknown = {}, options = {}): Promise<string> {
  return (await client.enqueue(kind, payload, { queue: kind, ...options })).id;
}

/** A worker for one kind, for the length of the block. */
async function working<T>(kind: string, handler: Handler, act: () => Promise<T>, options = {}): Promise<T> {
  const stop = new AbortController();
  const worker = client.worker({ handlers: { [kind]: handler }, queues: [kind], wait: 1, log: false, ...options });
  const running = worker.run(stop.signal);
  try {
    return await Promise.race([act(), running.then(() => Promise.reject(new Error("the worker ended")))]);
  } finally {
    stop.abort();
    await running;
  }
}

/** A connection without a response. */
function unanswered(signal: AbortSignal | null | undefined): Promise<Response> {
  return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
}

// Each test has its own kind and queue.
describe("a worker", { concurrency: true }, () => {
  it("jobs are completed, several at a time, and failures are recorded", async () => {
    const kind = "ts.work";
    let most = 0;
    let now = 0;
    const handler: Handler = async (payload, { job }) => {
      const { n } = payload as { n: number };
      most = Math.max(most, ++now);
      await sleep(20);
      now--;
      if (n === 1) throw new TypeError("one is not enough");
      if (n === 2) throw new Reject("two is never right");
      if (n === 3 && job.attempt === 1) throw new Retry("again", 0);
      if (n === 4 && job.attempt === 1) throw new Snooze(0);
      return { doubled: 2 * n };
    };
    const ids = await Promise.all([0, 1, 2, 3, 4, 5].map((n) => made(kind, { n }, { retry: { max_attempts: n === 1 ? 1 : 5 } })));
    const [zero, one, two, three, four, five] = ids as [string, string, string, string, string, string];
    await working(kind, handler, async () => {
      assert.deepEqual(await client.wait(zero, { timeout: 20_000 }), { doubled: 0 });
      await assert.rejects(client.wait(one, { timeout: 20_000 }), (error) => error instanceof JobFailed && /one is not enough \(TypeError\)/.test(error.message));
      await assert.rejects(client.wait(two, { timeout: 20_000 }), JobFailed);
      assert.deepEqual(await client.wait(three, { timeout: 20_000 }), { doubled: 6 });
      assert.deepEqual(await client.wait(four, { timeout: 20_000 }), { doubled: 8 });
      assert.deepEqual(await client.wait(five, { timeout: 20_000 }), { doubled: 10 });
    });
    assert.ok(most > 1);
    const [retried, snoozed] = await Promise.all([client.jobs.get(three), client.jobs.get(four)]);
    assert.deepEqual([retried?.retries, snoozed?.retries], [1, 0]);
  });

  it("a busy worker leaves nothing behind on the signal that ends it", async () => {
    const kind = "ts.busy";
    const ids = await Promise.all(Array.from({ length: 15 }, () => made(kind)));
    const stop = new AbortController();
    const worker = client.worker({ handlers: { [kind]: () => sleep(2) }, queues: [kind], wait: 1, concurrency: 1, log: false });
    const running = worker.run(stop.signal);
    try {
      for (const id of ids) await client.wait(id, { timeout: 30_000 });
      assert.ok(getEventListeners(stop.signal, "abort").length < 5);
    } finally {
      stop.abort();
      await running;
    }
  });

  it("a lease is renewed for as long as the handler takes", async () => {
    const kind = "ts.long";
    const id = await made(kind);
    const handler: Handler = async (_, context: Context) => {
      await context.progress(0.5, "half");
      await sleep(5_500, undefined, { signal: context.signal });
      return context.job.attempt;
    };
    assert.equal(await working(kind, handler, () => client.wait(id, { timeout: 30_000 }), { ttl: 4 }), 1);
  });

  it("a job that is cancelled stops its handler, and is not settled", async () => {
    const kind = "ts.cancelled";
    const id = await made(kind);
    let aborted: unknown;
    const begun = new Promise<void>((begin) => {
      void working(
        kind,
        async (_, { signal }) => {
          begin();
          await once(signal, "abort");
          aborted = signal.reason;
          return "too late";
        },
        async () => {
          while (aborted === undefined) await sleep(20);
        },
        { ttl: 4 },
      ).then(() => finish());
    });
    let finish: () => void = () => undefined;
    const over = new Promise<void>((resolve) => (finish = resolve));
    await begun;
    await client.jobs.cancel(id, { reason: "enough" });
    await over;
    assert.match(String(aborted), /no longer belongs to this worker/);
    assert.equal((await client.jobs.get(id))?.state, "cancelled");
  });

  it("a worker that stops releases unfinished jobs without using up an attempt", async () => {
    const kind = "ts.stopped";
    const id = await made(kind);
    let first = true;
    await new Promise<void>((resolve) => {
      const stop = new AbortController();
      const handler: Handler = async (_, { signal }) => {
        stop.abort();
        await once(signal, "abort");
      };
      const worker = client.worker({ handlers: { [kind]: handler }, queues: [kind], grace: 50, log: false });
      void worker.run(stop.signal).then(resolve);
    });
    const result = await working(kind, () => (first = false), () => client.wait(id, { timeout: 20_000 }));
    assert.deepEqual([result, first], [false, false]);
    const job = await client.jobs.get(id);
    assert.deepEqual([job?.attempt, job?.retries, job?.crashes], [2, 0, 0]);
  });

  it("the job of a worker that was killed comes back, with its checkpoints", async () => {
    const kind = "ts.killed";
    const id = await made(kind);
    const victim = spawn(process.execPath, [fileURLToPath(new URL("./victim.js", import.meta.url)), kind], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    await once(victim.stdout, "data"); // it has the job, and has saved a checkpoint
    victim.kill("SIGKILL");
    await once(victim, "exit");
    const handler: Handler = (_, { job }) => ({ attempt: job.attempt, ...job.checkpoints });
    const result = await working(kind, handler, () => client.wait(id, { timeout: 30_000 }));
    assert.deepEqual(result, { attempt: 2, rows: 7 });
    assert.equal((await client.jobs.get(id))?.crashes, 1);
  });

  it("a worker without permission reports it and ends", async () => {
    const stranger = new Client({ token: "hf_another" });
    const worker = stranger.worker({ handlers: { x: () => undefined }, log: false });
    await assert.rejects(worker.run(new AbortController().signal), (error: { code?: string }) => error.code === "unauthenticated");
  });

  it("a renewal without a response does not cost the lease", async () => {
    const kind = "ts.stalled";
    const id = await made(kind);
    let stalled = 0;
    const patient = new Client({
      fetch: (input, init) => (String(input).endsWith("/renew") && stalled++ === 0 ? unanswered(init?.signal) : fetch(input, init)),
    });
    const stop = new AbortController();
    const handler: Handler = async (_, context) => {
      await sleep(7_000, undefined, { signal: context.signal });
      return context.job.attempt;
    };
    const running = patient.worker({ handlers: { [kind]: handler }, queues: [kind], ttl: 4, wait: 0, log: false }).run(stop.signal);
    assert.equal(await client.wait(id, { timeout: 30_000 }), 1);
    stop.abort();
    await running;
    assert.ok(stalled > 1);
  });

  it("jobs that were claimed during the stop are released without using up an attempt", async () => {
    const kind = "ts.leaving";
    const id = await made(kind);
    const stop = new AbortController();
    const leaving = new Client({
      fetch: async (input, init) => {
        if (!String(input).endsWith("/claim")) return fetch(input, init);
        await (await fetch(input, { ...init, signal: null })).arrayBuffer(); // the service has done it by now
        stop.abort();
        throw new TypeError("the worker no longer waits");
      },
    });
    await leaving.worker({ handlers: { [kind]: () => "unheard" }, queues: [kind], wait: 0, log: false }).run(stop.signal);
    assert.equal(await working(kind, () => "heard", () => client.wait(id, { timeout: 20_000 })), "heard");
    const job = await client.jobs.get(id);
    assert.deepEqual([job?.attempt, job?.retries, job?.crashes], [2, 0, 0]);
  });

  it("jobs of a claim whose response was lost are released", async () => {
    const kind = "ts.unheard";
    const id = await made(kind);
    let lost = 0;
    const deaf = new Client({
      fetch: async (input, init) => {
        const response = await fetch(input, init);
        if (lost === 0 && String(input).endsWith("/claim")) {
          lost++;
          await response.arrayBuffer(); // the service has done it by now
          throw new TypeError("the connection was lost");
        }
        return response;
      },
    });
    const stop = new AbortController();
    const worker = deaf.worker({ handlers: { [kind]: (_, { job }) => job.attempt }, queues: [kind], ttl: 4, wait: 1, log: false });
    const running = worker.run(stop.signal);
    assert.equal(await client.wait(id, { timeout: 30_000 }), 2);
    stop.abort();
    await running;
    const job = await client.jobs.get(id);
    assert.deepEqual([lost, job?.retries, job?.crashes], [1, 0, 0]);
  });

  it("a result survives an outage that is longer than the transport's retries, and is recorded once", async () => {
    const kind = "ts.outage";
    const id = await made(kind);
    let refused = 0;
    const cut = new Client({
      tries: 1,
      fetch: (input, init) => (String(input).endsWith("/settle") && refused++ < 3 ? Promise.reject(new TypeError("cut")) : fetch(input, init)),
    });
    const lines: LogLine[] = [];
    const stop = new AbortController();
    let runs = 0;
    const options = { handlers: { [kind]: () => ++runs }, queues: [kind], wait: 1, log: (line: LogLine) => lines.push(line) };
    const running = cut.worker(options).run(stop.signal);
    try {
      assert.equal(await client.wait(id, { timeout: 30_000 }), 1);
    } finally {
      stop.abort();
      await running;
    }
    assert.deepEqual([runs, refused, (await client.jobs.get(id)).attempt], [1, 4, 1]);
    assert.equal(lines.filter((line) => line.message.startsWith("Result not recorded yet")).length, 3);
  });

  it("a result that the server refuses ends the job instead of running it again", async () => {
    const kind = "ts.large";
    const id = await made(kind);
    const handler: Handler = () => "x".repeat(9 * 1024 * 1024);
    await working(kind, handler, () => assert.rejects(client.wait(id, { timeout: 30_000 }), /ResultRefused/));
    assert.equal((await client.jobs.get(id)).attempt, 1);
  });

  it("log lines are JSON with the fields of the job, and SIGTERM ends the worker cleanly", async () => {
    const kind = "ts.logged";
    const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const id = await made(kind, { fail: false });
    const traced = await made(kind, { fail: true }, { retry: { max_attempts: 1 }, tags: [`trace:${traceparent}`] }).catch(() => undefined);
    const child = spawn(process.execPath, [fileURLToPath(new URL("./logging.js", import.meta.url)), kind], { stdio: ["ignore", "inherit", "pipe"] });
    let text = "";
    child.stderr.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
    const exited = once(child, "exit");
    await client.wait(id, { timeout: 30_000 });
    if (traced) await assert.rejects(client.wait(traced, { timeout: 30_000 }), JobFailed);
    child.kill("SIGTERM");
    assert.deepEqual(await exited, [0, null]);
    const lines = text.trim().split("\n").map((line) => JSON.parse(line) as LogLine);
    const ended = lines.find((line) => line.job === id && line.message === "Job ended: succeeded");
    assert.ok(ended, text);
    const { timestamp, duration, ...rest } = ended;
    assert.ok(!Number.isNaN(Date.parse(timestamp)) && typeof duration === "number");
    const trace_id = id.replaceAll("-", "");
    assert.deepEqual(rest, { level: "info", message: "Job ended: succeeded", worker: "ts-logger", trace_id, job: id, kind, queue: kind, tenant: "default", attempt: 1 });
    assert.ok(lines.some((line) => line.job === id && line.message === "from the handler"));
    assert.equal(lines.at(-1)?.message, "Worker stopped");
    if (traced) {
      const failed = lines.find((line) => line.job === traced && line.level === "warning");
      assert.deepEqual([failed?.trace_id, failed?.error], ["0af7651916cd43dd8448eb211c80319c", "TypeError"]);
    }
  });
});
