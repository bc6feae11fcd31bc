-- One login per part of a deployment, each with the rights it needs and no more. Run this once per server, as a role
-- that may create roles, before the first `holdfast migrate`; running it again changes nothing. Then set a password for
-- each login (\password holdfast_worker in psql) or use another way to authenticate.
--
--   login               member of           for
--   holdfast_owner      -                   holdfast migrate; owns the tables
--   holdfast_service    holdfast_admin      holdfast serve
--   holdfast_worker     holdfast_executor   holdfast worker, holdfast tick
--   holdfast_app        holdfast_producer   your application, which enqueues
--   holdfast_reader     holdfast_viewer     people and reports, which read
do $$
declare
    v_name text;
begin
    foreach v_name in array array['holdfast_viewer', 'holdfast_producer', 'holdfast_executor', 'holdfast_approver', 'holdfast_admin'] loop
        if not exists (select from pg_roles where rolname = v_name) then
            execute format('create role %I nologin', v_name);
        end if;
    end loop;
    foreach v_name in array array['holdfast_owner', 'holdfast_service', 'holdfast_worker', 'holdfast_app', 'holdfast_reader'] loop
        if not exists (select from pg_roles where rolname = v_name) then
            execute format('create role %I login', v_name);
        end if;
    end loop;
end $$;

grant holdfast_admin to holdfast_service;
grant holdfast_executor to holdfast_worker;
grant holdfast_producer to holdfast_app;
grant holdfast_viewer to holdfast_reader;

-- The owner creates the schema `holdfast` in the current database.
do $$ begin execute format('grant create, connect on database %I to holdfast_owner', current_database()); end $$;
