-- Rows that were moved here from PostgreSQL keep the position of their transaction, which is part of their digests.
ALTER TABLE holdfast_event ADD COLUMN xid INTEGER;  -- Transaction that wrote the row on PostgreSQL; null if it was written here.
ALTER TABLE holdfast_action ADD COLUMN xid INTEGER;  -- Transaction that wrote the row on PostgreSQL; null if it was written here.
ALTER TABLE holdfast_ledger_epoch ADD COLUMN base INTEGER NOT NULL DEFAULT 0;  -- Base of the positions on PostgreSQL.
