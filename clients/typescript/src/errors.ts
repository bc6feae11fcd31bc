// Errors, with the same stable codes as in Python, SQL and the command line.

export interface Problem {
  code: string;
  detail?: string | undefined;
  fix?: string | undefined;
  /** The class of the error in Python. */
  error?: string | undefined;
  /** For `events_gone`: the current end of the ledger, and the number of the last missing event. */
  cursor?: string | undefined;
  through?: number | undefined;
}

export class HoldfastError extends Error {
  readonly code: string;
  readonly status: number | undefined;
  readonly fix: string | undefined;

  constructor(message: string, code: string, options: { status?: number; fix?: string | undefined } = {}) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.status = options.status;
    this.fix = options.fix;
  }
}

/** The request is invalid; nothing was stored. */
export class InvalidInput extends HoldfastError {}
/** Refused by a rule: a missing scope, a paused queue, a full tenant. */
export class Refused extends HoldfastError {}
export class NotFound extends Refused {}
/** The current state does not allow it, or the key was used with another payload. */
export class Conflict extends Refused {}
/** The lease has expired, or the job belongs to another worker now. */
export class StaleLease extends Refused {}
/** Retention has removed events that were not read. Read the current state again and follow from `cursor`, the end of the
 * ledger at that time; or follow with `gaps: "skip"`. */
export class EventsGone extends Refused {
  readonly cursor: string | undefined;
  /** The number of the last missing event. */
  readonly through: number | undefined;

  constructor(message: string, status: number, problem: Problem) {
    super(message, problem.code, { status, fix: problem.fix });
    this.cursor = problem.cursor;
    this.through = problem.through;
  }
}
/** The job had not ended within the timeout. It continues. */
export class WaitTimeout extends HoldfastError {}
/** The job has ended without success. */
export class JobFailed extends HoldfastError {}
/** No response, or one that reports that the server or its database is unavailable. */
export class Unavailable extends HoldfastError {}
/** A response that does not come from a Holdfast server, or that this version cannot read. */
export class UnexpectedAnswer extends HoldfastError {}

type ErrorClass = new (
  message: string,
  code: string,
  options?: { status?: number; fix?: string | undefined },
) => HoldfastError;

const byName: Record<string, ErrorClass> = {
  InvalidInput,
  InvalidPayload: InvalidInput,
  InvalidArguments: InvalidInput,
  InvalidSetting: InvalidInput,
  Refused,
  NotFound,
  Conflict,
  StaleLease,
  IllegalTransition: Conflict,
  WaitTimeout,
  JobFailed,
  StoreError: Unavailable,
  StoreUnavailable: Unavailable,
  SchemaMismatch: Unavailable,
};

const byStatus: Record<number, ErrorClass> = {
  400: InvalidInput,
  401: Refused,
  403: Refused,
  404: NotFound,
  408: WaitTimeout,
  409: Conflict,
  410: Refused,
  413: InvalidInput,
  422: InvalidInput,
  429: Unavailable,
  502: Unavailable,
  503: Unavailable,
  504: Unavailable,
};

const noRoute = new Set(["no_such_route", "method_not_allowed"]);

export function errorOf(status: number, problem: Problem): HoldfastError {
  // A missing route does not mean that the record does not exist.
  if (noRoute.has(problem.code)) return new UnexpectedAnswer(problem.detail ?? problem.code, problem.code, { status });
  if (problem.code === "events_gone") return new EventsGone(problem.detail ?? problem.code, status, problem);
  const kind = (problem.error && byName[problem.error]) || byStatus[status] || HoldfastError;
  return new kind(problem.detail ?? problem.code, problem.code, { status, fix: problem.fix });
}

/** Whether a retry may succeed. It does not for a database that has not been migrated. */
export function isTransient(error: HoldfastError): boolean {
  return error instanceof Unavailable && error.code !== "schema_mismatch";
}

/** Read a problem document (RFC 9457); throws if it is not one. */
export function problemOf(body: Record<string, unknown>): Problem {
  const text = (name: string): string | undefined => (typeof body[name] === "string" ? body[name] : undefined);
  const code = text("code");
  if (code === undefined || code.length > 100) throw new TypeError("not a problem document");
  const through = typeof body.through === "number" ? body.through : undefined;
  return { code, detail: text("detail"), fix: text("fix"), error: text("error"), cursor: text("cursor"), through };
}

export function unavailable(why: string, status?: number): Unavailable {
  return new Unavailable(why, "store_unavailable", status === undefined ? {} : { status });
}

export function unexpected(why: string, status?: number): UnexpectedAnswer {
  return new UnexpectedAnswer(why, "unexpected_answer", status === undefined ? {} : { status });
}
