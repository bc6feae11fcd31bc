-- lost if exists (select from event where xid = 0): the seals of a database that was moved here
comment on column event.xid is 'Transaction that wrote the row.';
