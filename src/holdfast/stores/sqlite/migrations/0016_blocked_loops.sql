-- Workers whose event loop is blocked: reported by their heartbeat, which is a thread of its own.

ALTER TABLE holdfast_lease ADD COLUMN blocked_at INTEGER;
ALTER TABLE holdfast_lease ADD COLUMN blocked_in TEXT;
