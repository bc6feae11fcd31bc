// Log lines of a worker: one JSON object per line, with the field names of the Python worker's JSON log.

import type { ClaimedJob } from "./generated/types.js";

export type Level = "debug" | "info" | "warning" | "error";

export interface LogLine {
  timestamp: string;
  level: Level;
  message: string;
  worker: string;
  trace_id?: string;
  job?: string;
  kind?: string;
  queue?: string;
  tenant?: string;
  attempt?: number;
  /** Seconds. */
  duration?: number;
  /** The class of the error. */
  error?: string;
}

export type Log = (line: LogLine) => void;

const LONGEST_MESSAGE = 2_000;

/** The default: JSON lines on standard error. */
export function jsonLines(line: LogLine): void {
  process.stderr.write(`${JSON.stringify(line)}\n`);
}

/** The fields that a line about a job has. */
export function jobFields(job: ClaimedJob): Partial<LogLine> {
  const { id, kind, queue, tenant, attempt } = job;
  return { trace_id: traceOf(job), job: id, kind, queue, tenant, attempt };
}

/** The producer's trace id, which is stored as a tag; without one, the job's id, which has as many digits. */
export function traceOf(job: Pick<ClaimedJob, "id" | "tags">): string {
  for (const tag of job.tags) {
    const trace = /^trace:[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/.exec(tag)?.[1];
    if (trace !== undefined) return trace;
  }
  return job.id.replaceAll("-", "").toLowerCase();
}

/** One line without control characters. */
export function oneLine(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, " ").slice(0, LONGEST_MESSAGE);
}
