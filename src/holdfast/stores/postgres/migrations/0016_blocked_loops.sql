-- Workers whose event loop is blocked: reported by their heartbeat, which is a thread of its own.

alter table lease add column blocked_at timestamptz;   -- Since when the worker's event loop has not turned; null: it turns.
alter table lease add column blocked_in text;   -- Where in the code it is blocked.
