-- lost if exists (select from ledger_epoch where base > 0): the order of an adopted copy
alter table event alter column xid set default (pg_current_xact_id()::text::bigint);
alter table app_event alter column xid set default (pg_current_xact_id()::text::bigint);
alter table action alter column xid set default (pg_current_xact_id()::text::bigint);
drop table ledger_epoch;
