// What can go wrong, with the stable codes that Python, SQL and the command line give as well.

export interface Problem {
  code: string;
  detail?: string | undefined;
  fix?: string | undefined;
  /** The class that Python raises for it. */
  error?: string | undefined;
  /** Of `events_gone`: where the ledger ends now, and the number of the last event that is missing. */
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

/** The caller's fault; nothing was stored. */
export class InvalidInput extends HoldfastError {}
/** A rule said no. */
export class Refused extends HoldfastError {}
export class NotFound extends Refused {}
/** Another state, or another payload under the same key. */
export class Conflict extends Refused {}
/** The lease is not, or no longer, the holder's. */
export class StaleLease extends Refused {}
/** Retention has removed events that were not read. Look at everything anew and follow from `cursor`, which is where the
 * ledger ended then; or follow with `gaps: "skip"` what is left. */
export class EventsGone extends Refused {
  readonly cursor: string | undefined;
  /** The number of the last event that is missing. */
  readonly through: number | undefined;

  constructor(message: string, status: number, problem: Problem) {
    super(message, problem.code, { status, fix: problem.fix });
    this.cursor = problem.cursor;
    this.through = problem.through;
  }
}
/** The job had not ended in time; it goes on. */
export class WaitTimeout extends HoldfastError {}
/** The job that was waited for did not succeed. */
export class JobFailed extends HoldfastError {}
/** No answer, or one that says the service is not there. */
export class Unavailable extends HoldfastError {}
/** Somebody answered, and not in our language. */
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
  // That there is no such route says nothing of what was looked for there.
  if (noRoute.has(problem.code)) return new UnexpectedAnswer(problem.detail ?? problem.code, problem.code, { status });
  if (problem.code === "events_gone") return new EventsGone(problem.detail ?? problem.code, status, problem);
  const kind = (problem.error && byName[problem.error]) || byStatus[status] || HoldfastError;
  return new kind(problem.detail ?? problem.code, problem.code, { status, fix: problem.fix });
}

/** Whether it is likely to be better in a moment. A database that nobody has migrated is not. */
export function mayPass(error: HoldfastError): boolean {
  return error instanceof Unavailable && error.code !== "schema_mismatch";
}

export function unavailable(why: string, status?: number): Unavailable {
  return new Unavailable(why, "store_unavailable", status === undefined ? {} : { status });
}

export function unexpected(why: string, status?: number): UnexpectedAnswer {
  return new UnexpectedAnswer(why, "unexpected_answer", status === undefined ? {} : { status });
}
