-- Notify listeners that there is work or news: a queue's name (after a space, which no name begins with, if its order was
-- changed), an id, or an empty text, which means everything. Only a hint, sent when the transaction commits. Commits that
-- notify wait for one another; if that matters because many connections enqueue single jobs, `alter database … set
-- holdfast.notify = off` makes the workers rely on polling.
--
-- Any login of the database can listen. So a notification is a hash with a key that only our roles can read: a listener
-- recognizes the names it knows, and cannot read other names from it.
create or replace function signal_of(p_key text, p_what text) returns text language sql immutable
return case p_what when '' then '' else left(encode(sha256(convert_to(p_key || p_what, 'UTF8')), 'hex'), 32) end;

-- Return the key with which the names in notifications are hashed.
create or replace function signal_key() returns text language plpgsql stable security definer set search_path from current as $$
begin
    return (select d.signal_key from dispatch d);
end $$;

create or replace function notify_listeners(what text) returns void language plpgsql set search_path from current as $$
begin
    if coalesce(current_setting('holdfast.notify', true), '') <> 'off' then
        perform pg_notify(current_schema(), signal_of((select d.signal_key from dispatch d), notify_listeners.what));
    end if;
end $$;
