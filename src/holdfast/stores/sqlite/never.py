"""When a job is due that waits for something else than a time: never, until whoever parked it says otherwise."""

NEVER = 2**63 - 1
