-- Privileges of the roles. Roles belong to the whole server, so they may exist already; only creating them may need another
-- login. Without them only the owner can call the functions.
do $$
declare v_role text;
begin
    foreach v_role in array array['holdfast_viewer', 'holdfast_producer', 'holdfast_executor', 'holdfast_approver', 'holdfast_admin'] loop
        if not exists (select from pg_roles where rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when duplicate_object or unique_violation then null;   -- another database is being migrated at the same time
                when insufficient_privilege then
                    raise notice 'role % could not be created; ask an administrator to', v_role;
            end;
        end if;
    end loop;
end $$;
