export { Client } from "./client.js";
export type { Call, EventsWanted, GatesWanted, JobOptions, JobsWanted } from "./client.js";
export * from "./errors.js";
export type { DeadLetters, GroupsWanted, Queues, ScheduleDefinition, Schedules, SchedulesWanted } from "./operating.js";
export type { Held, Reserve } from "./reserving.js";
export type { Claim, DeadLetterGroup, Enqueued, Event, Gate, Health, Job, Operation, Schedule, Sent, Switch, Verdict } from "./schemas.js";
export type { TransportOptions } from "./transport.js";
export { Cancel, Reject, Retry, Snooze, Worker } from "./worker.js";
export type { Context, Handler, WorkerOptions } from "./worker.js";
