-- Notify listeners that there is work or news: a queue's name (after a space, which no name begins with, if its order was
-- changed), an id, or an empty text, which means everything. Only a hint, sent when the transaction commits. `alter database …
-- set holdfast.notify = off` makes the workers rely on polling.
--
-- Commits that notify wait for one another, so a new job is announced only if a worker or a client waits for jobs of its queue
-- (docs/adr/0007). Who waits holds a shared advisory lock: on the queue, or on the empty text for every queue. A login that
-- holds such a lock without need causes announcements, and cannot prevent any.
--
-- Any login of the database can listen. So a notification is a hash with a key that only our roles can read: a listener
-- recognizes the names it knows, and cannot read other names from it.
create or replace function signal_of(p_key text, p_what text) returns text language sql immutable
return case p_what when '' then '' else left(encode(sha256(convert_to(p_key || p_what, 'UTF8')), 'hex'), 32) end;

-- Whether a new job of this queue must be announced. Taking and releasing the lock is one expression, which is not interrupted.
create or replace function is_awaited(p_queue text) returns boolean language sql volatile
return case when pg_try_advisory_lock(hashtext(current_schema()), hashtext(p_queue))
            then not pg_advisory_unlock(hashtext(current_schema()), hashtext(p_queue)) else true end
    or case when pg_try_advisory_lock(hashtext(current_schema()), hashtext(''))
            then not pg_advisory_unlock(hashtext(current_schema()), hashtext('')) else true end;

-- Return the key with which the names in notifications are hashed. From then on every new job is announced, until the session
-- ends or releases the lock. It can be taken unless another session holds it alone: for an instant in is_awaited(), or without
-- need, and then every new job is announced anyway.
create or replace function signal_key() returns text language plpgsql volatile security definer set search_path from current as $$
begin
    for try in 1..20 loop
        exit when pg_try_advisory_lock_shared(hashtext(current_schema()), hashtext(''));
        perform pg_sleep(0.001);
    end loop;
    return (select d.signal_key from dispatch d);
end $$;

create or replace function notify_listeners(what text) returns void language plpgsql set search_path from current as $$
begin
    if coalesce(current_setting('holdfast.notify', true), '') <> 'off' then
        perform pg_notify(current_schema(), signal_of((select d.signal_key from dispatch d), notify_listeners.what));
    end if;
end $$;

-- Tell idle workers that maintenance may have work soon: a time was set, a setting changed, a workflow or a lease ended. They
-- hold the lock while they look only every few seconds, and for ten seconds after such a notification they look often and do
-- not hold it (worker/maintenance.py). So busy systems send none. No queue has this name, which begins with spaces. To be called
-- after a write: the listener waits for the transactions that have an id when it takes the lock.
create or replace function announce_upkeep() returns void language plpgsql set search_path from current as $$
begin
    if (case when pg_try_advisory_lock(hashtext(current_schema()), hashtext('  upkeep'))
             then not pg_advisory_unlock(hashtext(current_schema()), hashtext('  upkeep')) else true end) then
        perform notify_listeners('  upkeep');
    end if;
end $$;
