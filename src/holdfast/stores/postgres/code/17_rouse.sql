-- Tell whoever listens that there is something to do or to know: a queue's name (after a space, which no name begins
-- with: one whose order was changed), or an id. A hint only, sent when the transaction commits. Commits that notify wait for one another; where many connections enqueue one job at a time
-- and that matters, `alter database … set holdfast.notify = off` leaves the workers to their polling.
create or replace function rouse(what text) returns void language plpgsql set search_path from current as $$
begin
    if coalesce(current_setting('holdfast.notify', true), '') <> 'off' then
        perform pg_notify(current_schema(), rouse.what);
    end if;
end $$;
