-- lost if exists (select 1 from holdfast_event where xid is not null): the seals of a database that was moved here
ALTER TABLE holdfast_event DROP COLUMN xid;
ALTER TABLE holdfast_action DROP COLUMN xid;
ALTER TABLE holdfast_ledger_epoch DROP COLUMN base;
