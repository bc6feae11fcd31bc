-- The waits for a job, which its end looks for.
CREATE INDEX IF NOT EXISTS holdfast_awaited ON holdfast_step (awaits) WHERE awaits IS NOT NULL AND ended_at IS NULL;
