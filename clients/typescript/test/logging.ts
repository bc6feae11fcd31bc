// A worker process with the default log, until SIGTERM.

import { Client } from "../src/index.js";

const kind = process.argv[2] ?? "";
await new Client()
  .worker({
    handlers: {
      [kind]: (payload, context) => {
        context.log("from the handler");
        if ((payload as { fail: boolean }).fail) throw new TypeError("requested\nfailure");
        return 7;
      },
    },
    queues: [kind],
    name: "ts-logger",
    wait: 1,
  })
  .run();
