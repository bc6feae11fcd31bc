-- A row that was moved here from SQLite has no position: its xid is 0 (features/moves). SQLite gets a column.
comment on column event.xid is 'Transaction that wrote the row.';
