-- The time that decides: the server's, never a worker's. Tests may shift or stop it through the table `clock`.
create or replace function clock_now() returns timestamptz language sql volatile
begin atomic
    select coalesce(stopped, clock_timestamp() + shift) from clock;
end;
