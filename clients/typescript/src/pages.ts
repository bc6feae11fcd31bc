// Lists, read page by page as one goes.

import type { z } from "zod";

import { unexpected } from "./errors.js";
import { pageOf } from "./schemas.js";
import type { Transport } from "./transport.js";

const MOST = 200;

export async function* every<Schema extends z.ZodTypeAny>(
  transport: Transport,
  item: Schema,
  path: string,
  wanted: Record<string, unknown> = {},
): AsyncGenerator<z.output<Schema>, void, undefined> {
  const page = pageOf(item);
  let after: string | undefined;
  for (;;) {
    const query = { ...wanted, after, limit: MOST };
    const found = await transport.ask(page, { method: "GET", path, query });
    yield* found.items as z.output<Schema>[];
    if (found.next === undefined || found.next === null) return;
    if (found.next === after) throw unexpected("the next page is the same again");
    after = found.next;
  }
}
