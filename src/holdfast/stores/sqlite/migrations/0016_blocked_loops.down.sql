ALTER TABLE holdfast_lease DROP COLUMN blocked_at;
ALTER TABLE holdfast_lease DROP COLUMN blocked_in;
