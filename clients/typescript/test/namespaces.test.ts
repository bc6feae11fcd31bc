// The namespaces, against a real server: each route that changes something is used once, and its effect read back.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, Conflict, HoldfastError, InvalidInput, NotFound, Refused } from "../src/index.js";

const client = new Client();

/** With a token of all tenants. */
const everything = new Client({ token: process.env.HOLDFAST_ROOT_TOKEN ?? "" });
const quiet = { wait: 1, log: false } as const;

test("a schedule is added, edited, paused, resumed, run, and fires for a worker over HTTP", async () => {
  const name = "ts/every so often";
  const made = await client.schedules.add({ name, timing: "every 1s", kind: "ts.timed", queue: "ts-timed", missed: "skip" });
  assert.deepEqual([made.state, made.options.queue], ["active", "ts-timed"]);
  assert.ok(made.next_fire_at instanceof Date);
  await assert.rejects(client.schedules.add({ name, timing: "every 1s", kind: "ts.timed" }), Conflict);
  await assert.rejects(client.schedules.add({ name: "ts-bad", timing: "now and then", kind: "x" }), InvalidInput);
  assert.equal((await client.schedules.pause(name)).state, "paused");
  assert.deepEqual((await client.schedules.list({ state: "paused" }).all()).map((each) => each.name), [name]);
  assert.equal((await client.schedules.edit(name, { jitter: 0.1 })).jitter, 0.1);
  assert.equal((await client.schedules.preview(name, { count: 3 }).all()).length, 3);
  const { job_id: byHand } = await client.schedules.run(name);
  assert.equal((await client.jobs.get(byHand)).kind, "ts.timed");
  assert.equal((await client.schedules.resume(name)).state, "active");
  assert.equal((await client.schedules.get(name)).name, name);
  await assert.rejects(client.schedules.get("ts-none"), NotFound);

  const stop = new AbortController();
  const ran: string[] = [];
  const timed = async (_: unknown, { job }: { job: { id: string } }): Promise<void> => {
    ran.push(job.id);
    if (ran.some((id) => id !== byHand)) stop.abort();
  };
  const late = setTimeout(() => stop.abort(), 30_000);
  await client.worker({ handlers: { "ts.timed": timed }, queues: ["ts-timed"], ...quiet }).run(stop.signal);
  clearTimeout(late);
  assert.ok(ran.includes(byHand));
  assert.ok(ran.some((id) => id !== byHand), "the server fires it");
  assert.ok((await client.schedules.history(name, { limit: 5 }).all()).length > 0);
  await client.schedules.remove(name);
  await assert.rejects(client.schedules.pause(name), NotFound);
});

test("dead letters are redriven and discarded, one by one and by the group", async () => {
  const stop = new AbortController();
  const broken = async (): Promise<never> => {
    throw new TypeError("it is broken");
  };
  const running = client.worker({ handlers: { "ts.broken": broken }, queues: ["ts-broken"], ...quiet }).run(stop.signal);
  const retry = { max_attempts: 1 };
  const ids = (await client.enqueueMany([1, 2].map((n) => ({ kind: "ts.broken", payload: { n }, queue: "ts-broken", retry })))).map(({ id }) => id);
  for (const id of ids) await assert.rejects(client.wait(id, { timeout: 20_000 }));
  stop.abort();
  await running;
  const group = await client.deadLetters.groups({ kind: "ts.broken" }).first();
  assert.ok(group);
  assert.deepEqual([group.open, group.error_code, group.error_message], [2, "TypeError", "it is broken"]);

  const key = group.fingerprint;
  assert.equal((await client.deadLetters.jobs(key).all()).length, 2);
  assert.equal((await client.deadLetters.note(key, { note: "known" })).note, "known");

  const [first, second] = ids as [string, string];
  const later = new Date(Date.now() + 3_600_000);
  await client.jobs.redrive(first, { at: later, reason: "tomorrow" });
  const redriven = await client.jobs.get(first);
  assert.deepEqual([redriven.state, redriven.due_at?.getTime()], ["queued", later.getTime()]);
  const { id: operation } = await client.deadLetters.redrive(key, { reason: "repaired" });
  const done = await client.operations.wait(operation, { timeout: 20_000 });
  assert.deepEqual([done.state, done.done], ["done", 1]);
  assert.equal((await client.deadLetters.group(key)).open, 0);
  assert.ok((await client.operations.list({}).all()).some((each) => each.id === operation));
  await assert.rejects(client.deadLetters.discard("ts-none", { reason: "never" }), NotFound);

  const cancelling = await client.operations.start({ action: "cancel", queue: "ts-broken", reason: "enough" });
  assert.equal((await client.operations.wait(cancelling.id, { timeout: 20_000 })).done, 2);
  assert.equal((await client.jobs.get(second)).state, "cancelled");
});

test("a queue is paused and resumed, and health reports it", async () => {
  const paused = await client.pauses.set({ queue: "ts-paused", reason: "too hot", refuse_enqueue: true, until: "1h" });
  assert.deepEqual([paused.scope, paused.name, paused.refuse_enqueue], ["queue", "ts-paused", true]);
  assert.ok(paused.until instanceof Date);
  await assert.rejects(client.enqueue("ts.nothing", {}, { queue: "ts-paused" }), (error) => error instanceof HoldfastError && error.code === "paused");
  const health = await client.health.get();
  assert.ok(health.reasons.some((reason) => reason.code === "paused" && JSON.stringify(reason).includes("ts-paused")));
  assert.notEqual(health.verdict, "ok");
  assert.ok((await client.pauses.list().all()).some((each) => each.name === "ts-paused"));
  await client.pauses.remove({ queue: "ts-paused" });
  assert.ok(!(await client.pauses.list().all()).some((each) => each.name === "ts-paused"));
  assert.equal((await client.enqueue("ts.nothing", {}, { queue: "ts-paused" })).created, true);
});

test("limits, queues and retention are set, listed and removed", async () => {
  assert.equal((await client.limits.set({ queue: "ts-limited", concurrency: 2 })).concurrency, 2);
  assert.equal((await client.limits.list().all()).find((each) => each.name === "ts-limited")?.concurrency, 2);
  await client.limits.remove({ queue: "ts-limited" });
  assert.ok(!(await client.limits.list().all()).some((each) => each.name === "ts-limited"));
  await assert.rejects(client.limits.set({ concurrency: -1 }), InvalidInput);

  await client.queues.setAging("ts-aging", { every: "1m" });
  assert.ok((await client.queues.list().all()).some((each) => each.queue === "ts-aging"));

  await client.retention.set({ kind: "ts.kept", state: "succeeded", purge_after: "30d" });
  assert.ok((await client.retention.list().all()).some((each) => each.kind === "ts.kept"));
  await client.retention.preview().all();
  await client.retention.remove({ kind: "ts.kept", state: "succeeded" });

  await client.payloadRules.set({ kind: "ts.ruled", max_bytes: 300 });
  await assert.rejects(client.enqueue("ts.ruled", { text: "x".repeat(400) }), Refused);
  assert.equal((await client.payloadRules.effective({ kind: "ts.ruled" })).max_bytes, 300);
  await client.payloadRules.remove({ kind: "ts.ruled" });
});

test("a workflow is started once, read, extended and cancelled", async () => {
  const node = (name: string) => ({ name, kind: "ts.node", queue: "ts-nobody" });
  const input = { kind: "ts.publish", key: "ts-publish-7", nodes: [node("fetch"), node("render")], edges: [{ parent: "fetch", child: "render" }] };
  const started = await client.workflows.start(input);
  assert.deepEqual([started.created, Object.keys(started.jobs).sort()], [true, ["fetch", "render"]]);
  assert.deepEqual([(await client.workflows.start(input)).id, (await client.workflows.start(input)).created], [started.id, false]);
  const added = await client.workflows.extend(started.id, { nodes: [node("print")], edges: [{ parent: "render", child: "print" }] });
  assert.ok(added.jobs.print);
  const graph = await client.workflows.graph(started.id);
  assert.deepEqual([graph.nodes.length, graph.edges.length], [3, 2]);
  assert.ok((await client.workflows.list({ kind: "ts.publish" }).all()).some((each) => each.id === started.id));
  await client.workflows.cancel(started.id, { reason: "withdrawn" });
  assert.equal((await client.jobs.get(started.jobs.fetch ?? "")).state, "cancelled");
});

test("a template has versions, and jobs are made from it", async () => {
  await client.templates.set("ts-mail", { kind: "ts.mail", payload: { from: "shop" }, queue: "ts-nobody" });
  const newer = await client.templates.set("ts-mail", { kind: "ts.mail", payload: { from: "desk" }, queue: "ts-nobody" });
  assert.equal(newer.version, 2);
  const made = await client.templates.enqueue("ts-mail", { arguments: { to: "ada" } });
  assert.equal(made.created, true);
  assert.deepEqual((await client.jobs.get(made.id)).payload, { from: "desk", to: "ada" });
  assert.equal((await client.templates.versions("ts-mail").all()).length, 2);
  assert.equal((await client.templates.get("ts-mail", { version: 1 })).version, 1);
  await client.templates.remove("ts-mail");
  assert.ok(!(await client.templates.list().all()).some((each) => each.name === "ts-mail"));
});

test("attempts, steps, checkpoints, artifacts and the result of a job are read", async () => {
  const id = process.env.HOLDFAST_FINISHED_JOB ?? "";
  const { job, steps, checkpoints, result, artifacts } = await client.jobs.details(id);
  assert.deepEqual([job.state, result?.value], ["succeeded", { pages: 2 }]);
  assert.deepEqual(steps.map((each) => [each.name, each.value]), [["fetch", 2]]);
  assert.equal(checkpoints.page, 2);
  const [attempt] = await client.jobs.attempts(id).all();
  assert.deepEqual([attempt?.attempt, attempt?.outcome], [1, "succeeded"]);
  assert.deepEqual([artifacts.length, (await client.jobs.artifacts(id).all())[0]?.name], [1, "report.txt"]);
  assert.equal(new TextDecoder().decode(await client.jobs.artifact(id, "report.txt")), "two pages");
  assert.deepEqual(await client.jobs.handle(id).progress(), { fraction: 0.5, message: "half" });
});

test("webhooks and connectors are added, changed, tested, disabled and removed", async () => {
  const made = await client.webhooks.add({ name: "ts-hook", url: "https://hooks.example.com/jobs", secrets: ["TS_HOOK"], wants: ["job.succeed"] });
  assert.equal(made.enabled, true);
  assert.equal((await client.webhooks.set("ts-hook", { url: "https://hooks.example.com/other" })).url, "https://hooks.example.com/other");
  assert.deepEqual((await client.webhooks.rotateSecret("ts-hook", { secret: "TS_HOOK_2" })).secrets, ["TS_HOOK_2", "TS_HOOK"]);
  const sent = await client.webhooks.test("ts-hook");
  assert.ok((await client.jobs.get(sent.job_id)).kind);
  await client.webhooks.deliveries("ts-hook").all();
  assert.equal((await client.webhooks.disable("ts-hook", { reason: "away" })).enabled, false);
  assert.equal((await client.webhooks.enable("ts-hook")).enabled, true);
  assert.equal((await client.webhooks.get("ts-hook")).name, "ts-hook");
  await client.webhooks.remove("ts-hook");
  assert.deepEqual(await client.webhooks.list().all(), []);

  const rates = await client.connectors.set("ts-rates", { hosts: ["api.example.com"], timeout: "10s" });
  assert.deepEqual([rates.hosts, (await client.connectors.get("ts-rates")).name], [["api.example.com"], "ts-rates"]);
  await client.connectors.remove("ts-rates");
  assert.deepEqual(await client.connectors.list().all(), []);
});

test("agents, executors, tenants, tokens and subscriptions are managed", async () => {
  const agent = await client.agents.set("ts-agent", { name: "Desk", kind: "support" });
  assert.deepEqual([agent.name, (await client.agents.disable("ts-agent", { reason: "x" })).disabled_reason], ["Desk", "x"]);
  assert.equal((await client.agents.enable("ts-agent")).disabled_at, null);
  assert.equal((await client.agents.list({ kind: "support" }).all()).length, 1);
  assert.equal((await client.agents.get("ts-agent")).id, "ts-agent");

  const issued = await client.tokens.issue({ name: "ts-reader", roles: ["viewer"], expires: "1m" });
  const reader = new Client({ token: issued.text });
  assert.equal((await reader.jobs.list({ limit: 1 }).all()).length, 1);
  await assert.rejects(reader.enqueue("x"), (error) => error instanceof Refused && error.code === "missing_scope");
  assert.ok((await client.tokens.list().all()).some((each) => each.name === "ts-reader"));
  await client.tokens.revoke(issued.token.id);
  // Servers cache tokens for a few seconds.
  const refused = async (): Promise<boolean> => reader.jobs.list().first().then(() => false, (error) => error instanceof Refused);
  for (const end = Date.now() + 30_000; !(await refused()); await sleep(100)) assert.ok(Date.now() < end);

  await client.subscriptions.set("ts-sub", { on: "job.dead_letter", kind: "ts.notify", queue: "ts-nobody" });
  assert.equal((await client.subscriptions.list().all()).length, 1);
  await client.subscriptions.pause("ts-sub");
  await client.subscriptions.resume("ts-sub", { skip: true });
  await client.subscriptions.deliveries("ts-sub").all();
  await client.subscriptions.remove("ts-sub");

  assert.equal((await everything.tenants.set("ts-acme", { title: "Acme", max_pending: 7 })).max_pending, 7);
  assert.ok((await everything.tenants.list().all()).some((each) => each.name === "ts-acme"));
  assert.equal((await everything.tenants.get("ts-acme")).title, "Acme");
  await everything.tenants.remove("ts-acme");
  assert.deepEqual((await everything.tenants.fairQueues()).fair_queues, ["*"]);
  await everything.executors.set("ts-node", { role: "executor" });
  assert.ok((await everything.executors.list().all()).some((each) => each.label === "ts-node"));
  await everything.executors.remove("ts-node");
});

test("usage is counted, changes are audited and the audit is verified", async () => {
  await client.usage.count();
  assert.ok((await client.usage.list({ by: ["kind"] }).all()).length > 0);
  assert.ok((await client.audit.actions({ limit: 5 }).all()).length > 0);
  const { report } = await everything.audit.verify();
  assert.ok(report.seals > 0 && report.flaws.every((flaw) => flaw.kind === "postdated")); // the clock was moved before
  assert.ok((await everything.jobs.tick({})) !== undefined);
});

test("events are sent once per key, and consumers are listed", async () => {
  const sent = await client.sendEvent("ts.paid", { invoice: 7 }, { key: "ts-paid-7" });
  assert.equal(sent.created, true);
  assert.equal((await client.sendEvent("ts.paid", { invoice: 7 }, { key: "ts-paid-7" })).created, false);
  await client.consumers.list().all();
});

test("a reservation is held while a function runs, renewed, and released", async () => {
  const held = await client.reservations.hold({ resource: "ts-gpu", ttl: 3_000, reason: "measuring" }, async (mine) => {
    await assert.rejects(
      client.reservations.hold({ resource: "ts-gpu", wait: 0 }, () => assert.fail("it is reserved")),
      (error) => error instanceof Conflict && error.code === "reservation_busy",
    );
    await sleep(3_500); // longer than its ttl
    return mine;
  });
  assert.equal(held.signal.aborted, false);
  assert.equal(await client.reservations.hold({ resource: "ts-gpu", wait: 0 }, () => 7), 7, "it is free again");
  await assert.rejects(
    client.reservations.hold({ queue: "ts-quiet" }, () => {
      throw new TypeError("mine");
    }),
    TypeError,
  );
  await assert.rejects(client.reservations.hold({ ttl: 1 }, () => 1), InvalidInput);
});
