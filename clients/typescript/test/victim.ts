// A worker to be killed: it claims a job, saves a checkpoint, and never ends.

import { Client } from "../src/index.js";

const kind = process.argv[2] ?? "";
const worker = new Client().worker({
  handlers: {
    [kind]: async (_, context) => {
      await context.checkpoint("rows", 7);
      process.stdout.write("taken\n");
      await new Promise(() => setInterval(() => undefined, 1_000));
    },
  },
  queues: [kind],
  ttl: 4,
  log: false,
});
await worker.run(new AbortController().signal);
