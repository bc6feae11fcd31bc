// What operators do, against the real service: schedules, dead letters, queues, health.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, Conflict, HoldfastError, InvalidInput, NotFound } from "../src/index.js";

const client = new Client();

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("a schedule is made, seen, paused, resumed, run, and fires for a worker over HTTP", async () => {
  const name = "ts/every so often";
  const made = await client.schedules.create(name, { timing: "every 1s", kind: "ts.timed", queue: "ts-timed", missed: "skip" });
  assert.deepEqual([made.state, made.options.queue], ["active", "ts-timed"]);
  assert.ok(made.next_fire_at instanceof Date);
  await assert.rejects(client.schedules.create(name, { timing: "every 1s", kind: "ts.timed" }), Conflict);
  await assert.rejects(client.schedules.create("ts-bad", { timing: "now and then", kind: "x" }), InvalidInput);
  assert.equal((await client.schedules.pause(name)).state, "paused");
  assert.deepEqual((await collect(client.schedules.list({ state: "paused" }))).map((each) => each.name), [name]);
  const byHand = await client.schedules.runNow(name);
  assert.equal((await client.get(byHand))?.kind, "ts.timed");
  assert.equal((await client.schedules.resume(name)).state, "active");
  assert.equal((await client.schedules.get(name))?.name, name);
  assert.equal(await client.schedules.get("ts-none"), undefined);

  const stop = new AbortController();
  const ran: string[] = [];
  const timed = async (_: unknown, { job }: { job: { id: string } }): Promise<void> => {
    ran.push(job.id);
    if (ran.some((id) => id !== byHand)) stop.abort();
  };
  const late = setTimeout(() => stop.abort(), 30_000);
  await client.worker({ handlers: { "ts.timed": timed }, queues: ["ts-timed"], wait: 1 }).run(stop.signal);
  clearTimeout(late);
  assert.ok(ran.includes(byHand));
  assert.ok(ran.some((id) => id !== byHand), "nobody but the service is there to fire it");
  await client.schedules.delete(name);
  await assert.rejects(client.schedules.pause(name), NotFound);
});

test("dead letters are redriven and discarded by the group", async () => {
  const stop = new AbortController();
  const broken = async (): Promise<never> => {
    throw new TypeError("it is broken");
  };
  const running = client.worker({ handlers: { "ts.broken": broken }, queues: ["ts-broken"], wait: 1 }).run(stop.signal);
  const retry = { max_attempts: 1 };
  const ids = (await client.enqueueMany([1, 2].map((n) => ({ kind: "ts.broken", payload: { n }, queue: "ts-broken", retry })))).map(({ id }) => id ?? "");
  for (const id of ids) await assert.rejects(client.wait(id, { timeout: 20_000 }));
  stop.abort();
  await running;
  const [group] = await collect(client.deadLetters.groups({ kind: "ts.broken" }));
  assert.ok(group);
  assert.deepEqual([group.open, group.error_code, group.error_message], [2, "TypeError", "it is broken"]);

  const done = async (id: string): Promise<number> => {
    for (;;) {
      const found = await client.deadLetters.operation(id);
      if (found.state === "done") return found.done;
      await sleep(50);
    }
  };
  assert.equal(await done((await client.deadLetters.redrive(group.fingerprint, { reason: "mended" })).id), 2);
  assert.deepEqual([(await client.get(ids[0] ?? ""))?.state, (await client.deadLetters.get(group.fingerprint))?.open], ["queued", 0]);
  await assert.rejects(client.deadLetters.discard("ts-none", "never"), NotFound);
  for (const id of ids) await client.cancel(id);
});

test("a queue is paused and resumed, and health tells of it", async () => {
  const paused = await client.queues.pause("ts-paused", "too hot", { refuse_enqueue: true, until: "1h" });
  assert.deepEqual([paused.scope, paused.name, paused.refuse_enqueue], ["queue", "ts-paused", true]);
  assert.ok(paused.until instanceof Date);
  await assert.rejects(client.enqueue("ts.nothing", {}, { queue: "ts-paused" }), (error) => error instanceof HoldfastError && error.code === "paused");
  const health = await client.health();
  assert.ok(health.reasons.some((reason) => reason.code === "paused" && reason.says.includes("ts-paused")));
  assert.notEqual(health.verdict, "ok");
  assert.ok((await collect(client.queues.paused())).some((each) => each.name === "ts-paused"));
  await client.queues.resume("ts-paused");
  assert.ok(!(await collect(client.queues.paused())).some((each) => each.name === "ts-paused"));
  assert.equal((await client.enqueue("ts.nothing", {}, { queue: "ts-paused" })).created, true);
});

test("something is reserved while a function runs, kept alive, and released", async () => {
  const held = await client.reserve({ resource: "ts-gpu", ttl: 3_000, reason: "measuring" }, async (mine) => {
    await assert.rejects(
      client.reserve({ resource: "ts-gpu", wait: 0 }, () => assert.fail("it is taken")),
      (error) => error instanceof Conflict && error.code === "reservation_busy",
    );
    await sleep(3_500); // longer than it lasts by itself
    return mine;
  });
  assert.equal(held.signal.aborted, false);
  assert.equal(await client.reserve({ resource: "ts-gpu", wait: 0 }, () => 7), 7, "it is free again");
  await assert.rejects(
    client.reserve({ queue: "ts-quiet" }, () => {
      throw new TypeError("mine");
    }),
    TypeError,
  );
  await assert.rejects(client.reserve({ ttl: 1 }, () => 1), InvalidInput);
});
