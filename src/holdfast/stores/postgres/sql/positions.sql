-- Positions: numbers of transactions that keep rising when the database is copied to a server that counts from another one
-- (docs/adr/0002).
--
-- The position of a transaction is its number plus the base of the newest epoch. Adopting a copy begins an epoch whose base is
-- beyond every position that the original may have reached. Everything stored is a position: the column xid of event,
-- app_event and action, and the snapshots in cursors and seals.
--
-- Return the base of the newest epoch. In a copy that nobody has adopted, raise instead: positions would begin again below those
-- of the copied rows, and consumers would skip the events. The newest row of `ledger_epoch` shows where it was written
-- (0004_positions.sql); whatever copies the server's files also keeps its transaction counter. Volatile, so that it reads what is
-- committed now: a plan is made under the snapshot of a statement that may have waited for an adoption to end.
create or replace function current_base() returns bigint
language plpgsql volatile security definer set search_path from current as $$
declare v_base bigint;
begin
    select case when e.anchor = e.xmin::text::bigint and e.place = e.tableoid::bigint then e.base end into v_base
      from ledger_epoch e order by e.number desc limit 1;
    if v_base is null then
        raise exception 'this database is a copy, restored from a dump or replicated, and was not adopted yet'
            using errcode = 'ZH082', hint = 'See what is different in the copy, then adopt it: holdfast restore-check --adopt';
    end if;
    return v_base;
end $$;

-- Return current_base(), as a constant in cached plans: not even a row is read for an event. For statements that write `event`,
-- `app_event` or `action` only: adopting changes these tables, and the server plans such statements again.
create or replace function ledger_base() returns bigint
language plpgsql immutable set search_path from current as $$
begin
    return current_base();
end $$;

-- Return the position of this transaction: the default of the columns, with the same restriction as ledger_base.
create or replace function ledger_position() returns bigint language sql volatile
return pg_current_xact_id()::text::bigint + ledger_base();

-- Return the current snapshot in positions: it sees the positions whose transactions the calling statement sees, and every
-- position of earlier epochs.
create or replace function ledger_snapshot() returns pg_snapshot
language plpgsql stable set search_path from current as $$
declare
    v_base bigint := current_base();
    v_now  pg_snapshot := pg_current_snapshot();
begin
    if v_base = 0 then
        return v_now;
    end if;
    return (select (pg_snapshot_xmin(v_now)::text::bigint + v_base) || ':' || (pg_snapshot_xmax(v_now)::text::bigint + v_base) || ':'
                   || coalesce(string_agg((x::text::bigint + v_base)::text, ',' order by x), '')
              from pg_snapshot_xip(v_now) x)::pg_snapshot;
end $$;

alter table event alter column xid set default ledger_position();
alter table app_event alter column xid set default ledger_position();
alter table action alter column xid set default ledger_position();
