// A producer of fault 35 that uses the TypeScript client of a release: node upgrade_client.mjs PACKAGE FOLDER NAME PAUSE
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [source, folder, name, pause] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(`${source}/dist/src/index.js`));
const client = new Client(); // HOLDFAST_API_URL, HOLDFAST_API_TOKEN
for (let number = 1; !existsSync(`${folder}/enough`); number++) {
  const job = await client.enqueue("plain", { number }, { key: `${name}-${number}` });
  appendFileSync(`${folder}/accepted-${name}`, `${job.id}\n`);
  if ((await job.result({ timeout: 120_000 })) !== number) throw new Error("another result");
  await sleep(Number(pause) * 1000);
}
