-- Who may execute (DP-6): a whitelist of the labels that leases are opened under. Empty, it lets everybody. A label that is
-- registered as a generator plans work and never executes it.

create or replace function executes(p_label text) returns boolean language sql stable
begin atomic
    select not exists (select from executor) or exists (select from executor e where e.label = p_label and e.role = 'executor');
end;

create or replace function refuse_executor(p_label text) returns void language plpgsql set search_path from current as $$
begin
    raise exception 'executor % %', p_label,
        case when exists (select from executor e where e.label = p_label) then 'is a generator, which plans work and does not execute it'
             else 'is not on the list of those that may execute' end
        using errcode = 'ZH041', hint = 'add_executor(label) puts one on the list.';
end $$;

create or replace function judge_lease() returns trigger language plpgsql set search_path from current as $$
begin
    if not executes(new.name) then
        perform refuse_executor(new.name);
    end if;
    return new;
end $$;
create or replace trigger judge_insert before insert or update of name on lease for each row execute function judge_lease();

create or replace function add_executor(label text, role text default 'executor', actor text default null)
returns setof executor
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
begin
    perform enter('*', nullif(add_executor.actor, ''));
    insert into executor as e (label, role, added_by, added_at)
    values (add_executor.label, add_executor.role, actor(), clock_now())
    on conflict (label) do update set role = excluded.role, added_by = excluded.added_by, added_at = excluded.added_at
     where e.role <> excluded.role;
    return query select e.* from executor e where e.label = add_executor.label;
end $$;

create or replace function remove_executor(label text, actor text default null) returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
begin
    perform enter('*', remove_executor.actor);
    delete from executor e where e.label = remove_executor.label;
    return found;
end $$;
