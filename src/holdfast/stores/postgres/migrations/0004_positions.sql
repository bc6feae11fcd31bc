-- Epochs of the ledger: the first, and one for each time that a copy of the database was adopted. A position is the number of a
-- transaction plus the base of the newest epoch (positions.sql). Only copies of the server's files keep `xmin` and the id of a
-- table: in any other copy, `anchor` and `place` differ from them.
create table ledger_epoch (
    number    bigint      not null primary key,   -- Number of the epoch; the first is 0.
    base      bigint      not null,   -- Added to the numbers of transactions; greater than every position before.
    anchor    bigint      not null,   -- The `xmin` of this row in the database that wrote it.
    place     bigint      not null,   -- Object id of this table in that database.
    timeline  text        not null,   -- Timeline of that server.
    first_seq bigint      not null,   -- Events with this number or a greater one are of this epoch.
    at        timestamptz not null,
    actor     text        not null,
    constraint base_positive check (base >= 0)
);

-- A database that was restored before it had epochs may count its transactions from a smaller number.
insert into ledger_epoch (number, base, anchor, place, timeline, first_seq, at, actor)
select 0, case when t.top < pg_current_xact_id()::text::bigint then 0 else t.top + (1::bigint << 40) end, 0,
       'ledger_epoch'::regclass::oid::bigint, left(pg_walfile_name(pg_current_wal_lsn()), 8), 1, clock_timestamp(), current_user
  from (select greatest(
            (select e.xid from event e order by e.seq desc limit 1),
            (select a.xid from action a order by a.seq desc limit 1),
            (select a.xid from app_event a order by a.seq desc limit 1),
            (select max(substring(c.cursor from '^a?[0-9]+;[0-9]+:([0-9]{1,18}):')::bigint) - 1
               from (select cursor from consumer union all select cursor from subscription
                     union all select cursor from usage_place) c),
            (select pg_snapshot_xmax(s.snapshot::pg_snapshot)::text::bigint - 1 from seal s order by s.number desc limit 1),
            0) as top) t;
update ledger_epoch set anchor = xmin::text::bigint;
