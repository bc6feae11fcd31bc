-- Locks (docs/adr/0028). All of them need a privilege that only the owner of the schema has: an advisory lock could be held by
-- any login of the server. Rows of `mutex` by what they protect; a transaction that takes several takes them in ascending
-- order:
--
--     0 …  255   limits on everything, of every tenant        256 …  511   limits on a queue, of every tenant
--   512 …  767   limits on everything, of one tenant           768 … 1023   limits on a queue, of one tenant
--  1024 … 5119   all other limits                             5120 … 5183   the order of a queue (move)
--  5184 … 5247   versions of a template
--
-- Two names may share a row. Then one waits for the other unnecessarily, for a few milliseconds.
create or replace function mutex_of(p_first integer, p_count integer, p_name text) returns integer language sql immutable
return p_first + (hashtextextended(p_name, 0) & 1048575)::integer % p_count;

create or replace function lock_mutex(p_n integer) returns void language plpgsql set search_path from current as $$
begin
    perform check_isolation();
    perform from mutex m where m.n = p_n for update;
    if not found then
        raise exception 'mutex % is missing', p_n using errcode = 'ZH002', hint = 'Restore it: insert into mutex values (…).';
    end if;
end $$;

-- Lock a table exclusively until the end of the transaction, unless another session holds it.
create or replace function try_lock(p_table regclass) returns boolean language plpgsql set search_path from current as $$
begin
    perform check_isolation();
    execute format('lock table %s in exclusive mode nowait', p_table);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Return the sessions that hold a lock on one of our tables, or on a row in one, for which another session has waited longer
-- than `p_for`. Without the privileges of pg_read_all_stats the server still names the session, but not its statement.
create or replace function lock_waits(p_for interval default '1 s')
returns table (waiting integer, locked text, mode text, seconds double precision, holder integer, role text, application text)
language plpgsql security definer set search_path from current as $$
begin
    perform check_span('p_for', p_for);
    return query
    select l.pid, coalesce(c.relname::text, l.locktype), l.mode, extract(epoch from clock_timestamp() - l.waitstart)::float8,
           b.pid, a.usename::text, nullif(a.application_name, '')
      from pg_locks l
      left join pg_class c on l.locktype in ('relation', 'tuple') and c.oid = l.relation
     cross join lateral unnest(pg_blocking_pids(l.pid)) b(pid)
      left join pg_stat_activity a on a.pid = b.pid
     where not l.granted and l.waitstart <= clock_timestamp() - p_for
       -- A session that waits for a row or a transaction also holds a lock on the table: the wait is ours if the table is.
       and exists (select from pg_locks o join pg_class r on r.oid = o.relation
                    where o.pid = l.pid and o.locktype = 'relation' and r.relnamespace = current_schema()::regnamespace
                      and o.database = (select d.oid from pg_database d where d.datname = current_database()))
     order by l.waitstart, b.pid;
end $$;

-- Return the sessions that hold an exclusive lock on one of our tables.
create or replace function lock_holders() returns table (locked text, pid integer, role text, application text, transaction text)
language plpgsql security definer set search_path from current as $$
begin
    return query
    select c.relname::text, l.pid, a.usename::text, nullif(a.application_name, ''), l.virtualtransaction
      from pg_locks l join pg_class c on c.oid = l.relation and c.relnamespace = current_schema()::regnamespace
      left join pg_stat_activity a on a.pid = l.pid
     where l.locktype = 'relation' and l.granted and l.mode in ('ExclusiveLock', 'AccessExclusiveLock')
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and l.pid is distinct from pg_backend_pid()
     order by 1, 2;
end $$;

create or replace function holder_message(p_pid integer, p_role text, p_application text) returns text language sql stable
return concat('process ', coalesce(p_pid::text, 'unknown'), ' (role ', coalesce(p_role, 'unknown'), ', application ', p_application, ')');

create or replace trigger refuse_change before update or delete or truncate on mutex
    for each statement execute function refuse_change();
