// Against a real server: HOLDFAST_API_URL and HOLDFAST_API_TOKEN name it. tests/http/test_typescript.py starts it.

import assert from "node:assert/strict";
import { createServer, type Server, type ServerResponse } from "node:http";
import { after, before, test } from "node:test";
import { inspect } from "node:util";

import { type Approval, Client, Conflict, EventsGone, HoldfastError, InvalidInput, JobFailed, NotFound, Unavailable, UnexpectedAnswer, WaitTimeout } from "../src/index.js";
import { Transport } from "../src/transport.js";

const client = new Client();
const token = process.env.HOLDFAST_API_TOKEN ?? "";

async function collect<T>(items: AsyncIterable<T>, most = 1_000): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) {
    found.push(item);
    if (found.length === most) break;
  }
  return found;
}

test("a job is enqueued, read, listed, moved, rescheduled and cancelled", async () => {
  const run_at = new Date(Date.now() + 3_600_000);
  const references = { source_ref: "s3://in/7", target_ref: "s3://out/7" };
  const made = await client.enqueue("ts.nothing", { to: "ada" }, { tags: ["ts-a"], run_at, key: "ts-once", ...references });
  assert.equal(made.created, true);
  const again = await client.enqueue("ts.nothing", { to: "ada" }, { tags: ["ts-a"], run_at, key: "ts-once", ...references });
  assert.deepEqual([again.id, again.created, again.reason], [made.id, false, "duplicate_key"]);
  const job = await made.get();
  assert.deepEqual([job.kind, job.payload, job.tags], ["ts.nothing", { to: "ada" }, ["ts-a"]]);
  assert.equal(job.due_at?.getTime(), run_at.getTime());
  const details = await client.jobs.details(made.id);
  assert.deepEqual([details.references?.source_ref, details.references?.target_ref], ["s3://in/7", "s3://out/7"]);
  const why = await client.jobs.why(made.id);
  assert.ok(why.reasons.length > 0);
  const later = new Date(Date.now() + 7_200_000);
  await made.reschedule({ at: later, reason: "not yet" });
  assert.equal((await client.jobs.get(made.id)).due_at?.getTime(), later.getTime());
  await client.jobs.reschedule(made.id);
  assert.equal((await made.move({ priority: 7 })).refused, false);
  assert.deepEqual([(await made.get()).priority, await made.state()], [7, "queued"]);
  assert.equal((await client.jobs.count({ tag: "ts-a" })).counts.queued, 1);
  assert.deepEqual((await client.jobs.chain(made.id).all()).map((each) => each.id), [made.id]);
  await assert.rejects(made.result({ timeout: 100 }), WaitTimeout);
  assert.equal((await made.cancel({ reason: "not wanted" })).state, "cancelled");
  await assert.rejects(made.cancel(), (error) => error instanceof Conflict && error.code !== "conflict");
  await assert.rejects(client.wait(made.id), JobFailed);
  assert.equal((await client.jobs.handle(made.id).wait()).state, "cancelled");
  await assert.rejects(client.enqueue("ts.nothing", {}, { priority: 1e9 }), InvalidInput);
  const missing = client.jobs.handle("0198c5b4-0000-7000-8000-000000000001");
  await assert.rejects(missing.get(), NotFound);
  await assert.rejects(missing.cancel(), NotFound);
  for (const id of ["", ".", ".."]) await assert.rejects(async () => client.jobs.get(id), TypeError);
  const types = (await made.history()).map((event) => event.type);
  assert.deepEqual(types.at(-1), "cancel");
});

test("many jobs are enqueued in one request and read page by page", async () => {
  const calls = Array.from({ length: 230 }, (_, n) => ({ kind: "ts.many", payload: { n }, queue: "ts-many" }));
  const made = await client.enqueueMany(calls);
  assert.equal(made.filter((each) => each.created).length, 230);
  const found = await client.jobs.list({ queue: "ts-many" }).all();
  assert.deepEqual(found.map((job) => job.id).reverse(), made.map((each) => each.id));
  assert.equal((await client.jobs.list({ queue: "ts-many", limit: 3 }).all()).length, 3);
  assert.equal((await client.jobs.list({ queue: "ts-many", limit: 210 }).all()).length, 210);
  assert.equal((await collect(client.jobs.list({ queue: "ts-many" }), 3)).length, 3);
  const page = await client.jobs.list({ queue: "ts-many" }).page({ limit: 100 });
  assert.ok(page.items.length === 100 && page.next);
  const rest = await client.jobs.list({ queue: "ts-many", after: page.next }).all();
  assert.deepEqual([rest.length, rest[0]?.id], [130, found[100]?.id]);
  assert.equal((await client.jobs.list({ queue: "ts-many" }).first())?.id, found[0]?.id);
  assert.deepEqual(await client.enqueueMany([]), []);
  const events = await client.events.list({ kind: "ts.many" }).all();
  assert.equal(events.length, 230);
  assert.deepEqual(await client.events.list({ kind: "ts.many", after: events.at(-1)?.cursor }).all(), []);
});

test("events are followed from now on, until the signal", async () => {
  const stop = new AbortController();
  const seen: string[] = [];
  const following = (async () => {
    for await (const event of client.events.follow({ kind: "ts.followed", signal: stop.signal })) {
      seen.push(event.type);
      if (event.type === "cancel") stop.abort();
    }
  })();
  // The stream begins at an unknown moment: enqueue until one event has arrived.
  while (seen.length === 0) {
    await client.enqueue("ts.followed", {}, { queue: "ts-nobody" });
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const last = await client.enqueue("ts.followed", {}, { queue: "ts-nobody" });
  await last.cancel();
  await following;
  assert.equal(seen.at(-1), "cancel");
  assert.ok(seen.slice(0, -1).every((type) => type === "enqueue"));
});

test("a follower learns that retention has removed events, and can start again", async () => {
  const place = process.env.HOLDFAST_GONE_AFTER;
  assert.ok(place);
  const gone = await collect(client.events.follow({ after: place }), 1).then(
    () => undefined,
    (error: unknown) => error,
  );
  assert.ok(gone instanceof EventsGone);
  assert.deepEqual([gone.code, gone.status, gone.through], ["events_gone", 410, Number(process.env.HOLDFAST_GONE_THROUGH)]);
  assert.ok(gone.cursor);
  const made = await client.enqueue("ts.again", {}, { queue: "ts-nobody" });
  const [first] = await collect(client.events.follow({ after: gone.cursor, kind: "ts.again" }), 1);
  assert.equal(first?.job_id, made.id);
  const [left] = await collect(client.events.follow({ after: place, gaps: "skip" }), 1);
  assert.ok(left && left.seq > (gone.through ?? 0));
});

test("approvals are listed, read, approved and denied, also by a token for one decision", async () => {
  const approvals = await client.approvals.list({ name: "ts-approval" }).all();
  assert.equal(approvals.length, 3);
  const [first, second, third] = approvals as [Approval, Approval, Approval];
  assert.equal((await client.approvals.get(first.id)).approval.summary, "Go on?");
  assert.equal((await client.approvals.approve(first.id, { comment: "fine" })).state, "approved");
  assert.equal((await client.approvals.deny(second.id)).state, "denied");
  await assert.rejects(client.approvals.approve(first.id), (error) => error instanceof HoldfastError && error.code === "already_decided");
  const issued = await client.approvals.issueToken(third.id, {});
  const question = await client.approvals.question(issued.token);
  assert.ok("approval" in question && question.approval.summary === "Go on?");
  await client.approvals.decide(issued.token, { verdict: "approve", by: "ada" });
  assert.equal((await client.approvals.get(third.id)).approval.state, "approved");
});

test("the token is never printed, and an unknown one is refused", async () => {
  assert.ok(token.length > 20);
  assert.ok(!inspect(client, { depth: 10, showHidden: true }).includes(token));
  const stranger = new Client({ token: "hf_another" });
  await assert.rejects(stranger.jobs.get("7"), (error) => error instanceof HoldfastError && error.code === "unauthenticated");
  assert.throws(() => new Client({ url: "jobs.example.com" }), HoldfastError);
});

// --- broken servers ---

let broken: Server;
let requests: { url: string; key: string | undefined }[] = [];

before(async () => {
  broken = createServer((request, response) => {
    requests.push({ url: request.url ?? "", key: request.headers["idempotency-key"] as string | undefined });
    const how = (request.url ?? "").split("/")[1];
    if (how === "html") response.end("<html>" + token);
    else if (how === "lost" && requests.length < 3) request.socket.destroy();
    else if (how === "busy") response.writeHead(503).end("busy");
    else if (how === "shape") response.setHeader("content-type", "application/json").end('{"job": {"id": 7}}');
    else if (how === "away") response.writeHead(307, { location: "http://127.0.0.2:1/" }).end();
    else if (how === "half") response.writeHead(200, { "content-length": 9 }).write("{", () => request.socket.destroy());
    else if (how === "mute") mute(request.headers["last-event-id"], response, () => request.socket.destroy());
    else if (how === "locked") locked(response);
    else if (how === "cut") cutStream(request.headers["last-event-id"], response, () => request.socket.destroy());
    else if (how === "slow") response.writeHead(200).write("{");
    else response.setHeader("content-type", "application/json").end('{"id": "7", "tenant": "default", "created": false, "reason": "duplicate_key"}');
  });
  await new Promise<void>((resolve) => broken.listen(0, "127.0.0.1", resolve));
});

after(() => {
  broken.closeAllConnections();
  broken.close();
});

/** A stream that breaks before its first event, and names its start in a header. The third connection has an event. */
function mute(after: string | string[] | undefined, response: ServerResponse, cut: () => void): void {
  response.writeHead(200, { "content-type": "text/event-stream", "holdfast-cursor": "40" });
  if (requests.length < 3) response.write("re", cut);
  else response.write(`retry: 0\n\n${event(Number(after ?? 0) + 1)}`);
}

function locked(response: ServerResponse): void {
  const problem = { code: "database_locked", error: "StoreUnavailable" };
  const first = requests.length === 1;
  response.writeHead(first ? 503 : 200, { "content-type": "application/json" });
  response.end(JSON.stringify(first ? problem : { items: [], next: null }));
}

/** Events 1 to 6; each connection breaks within the third event, after its id. */
function cutStream(after: string | string[] | undefined, response: ServerResponse, cut: () => void): void {
  const begin = Number(after ?? 0) + 1;
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.write(`retry: 10\n\n${event(begin)}${event(begin + 1)}${event(begin + 2).slice(0, 60)}`, cut);
}

function event(seq: number): string {
  const data = { seq, job_id: "7", tenant: "default", kind: "mail", type: "enqueue", cursor: `${seq}` };
  const rest = { from_state: null, to_state: "queued", attempt: 0, actor: "ada", at: new Date(), meta: {} };
  return `id: ${seq}\nevent: job.enqueue\ndata: ${JSON.stringify({ ...data, ...rest })}\n\n`;
}

function at(how: string, options: { tries?: number; timeout?: number } = {}): Client {
  const address = broken.address();
  assert.ok(address && typeof address === "object");
  requests = [];
  return new Client({ url: `http://127.0.0.1:${address.port}/${how}`, token, tries: 3, ...options });
}

test("a broken server gives a clear error, in time, without the token", async () => {
  const failed = async (how: string, kind: new (...args: never[]) => HoldfastError, options = {}): Promise<void> => {
    await assert.rejects(at(how, options).jobs.get("7"), (error) => {
      assert.ok(error instanceof kind, `${how}: ${String(error)}`);
      assert.ok(!inspect(error).includes(token), how);
      return true;
    });
  };
  await failed("html", UnexpectedAnswer);
  await failed("shape", UnexpectedAnswer);
  await failed("away", HoldfastError);
  assert.equal(requests.length, 1);
  await failed("slow", Unavailable, { timeout: 300, tries: 1 });
  await assert.rejects(at("slow", { timeout: 300 }).wait("7", { timeout: 100 }), Unavailable);
  assert.equal(requests.length, 1); // the caller does not wait any longer
  await failed("half", Unavailable, { tries: 2 });
  assert.equal(requests.length, 2);
  await failed("busy", Unavailable);
  assert.equal(requests.length, 3);
});

test("a lost connection makes no second job: the repeated request has the same key", async () => {
  const made = await at("lost").enqueue("mail");
  assert.deepEqual([made.id, made.created, made.reason], ["7", true, null]);
  assert.equal(requests.length, 3);
  assert.equal(new Set(requests.map((each) => each.key)).size, 1);
  await assert.rejects(at("lost").jobs.cancel("7"), Unavailable);
  assert.equal(requests.length, 1);
});

test("a stream that breaks within an event continues with that event", async () => {
  const seen = await collect(at("cut").events.follow({ after: "0" }), 6);
  assert.deepEqual(seen.map((event) => event.seq), [1, 2, 3, 4, 5, 6]);
  assert.equal(requests.length, 3);
});

test("a stream that breaks before its first event keeps its start; one that never has an event fails", async () => {
  const [first] = await collect(at("mute").events.follow(), 1);
  assert.equal(first?.seq, 41);
  assert.equal(requests.length, 3);
  await assert.rejects(collect(at("mute", { tries: 2 }).events.follow(), 1), (error) => error instanceof Unavailable && /before the first event/.test(error.message));
  assert.equal(requests.length, 2);
});

test("a request is repeated while the database is unavailable", async () => {
  assert.deepEqual(await collect(at("locked").jobs.list(), 1), []);
  assert.equal(requests.length, 2);
});

test("a stream is not opened again without a pause, whatever delay the server requests", () => {
  const transport = new Transport({ url: "http://127.0.0.1:1" });
  assert.deepEqual([undefined, 0, 1, 999_999_999].map((retry) => transport.reconnectDelay({ retry }, 0)), [250, 250, 250, 8_000]);
});
