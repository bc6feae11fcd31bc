export { Client } from "./client.js";
export type { Call, EventsWanted, ApprovalsWanted, JobOptions, JobsWanted } from "./client.js";
export * from "./errors.js";
export type { DeadLetters, GroupsWanted, Queues, ScheduleDefinition, Schedules, SchedulesWanted } from "./operating.js";
export type { Held, Reserve } from "./reserving.js";
export type { Approval, Claim, DeadLetterGroup, Enqueued, Event, Health, Job, Operation, Pause, Schedule, SentResult, Verdict } from "./schemas.js";
export type { TransportOptions } from "./transport.js";
export { Cancel, Reject, Retry, Snooze, Worker } from "./worker.js";
export type { Context, Handler, WorkerOptions } from "./worker.js";
