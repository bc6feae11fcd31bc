-- The waits for a job, which its end looks for.
create index concurrently awaited on step (awaits) where awaits is not null and ended_at is null;
