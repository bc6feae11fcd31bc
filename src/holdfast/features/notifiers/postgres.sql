-- Notifiers. They belong to one tenant and contain names of secrets, never the secrets.

-- Create or replace a notifier, and return its row. The caller saves its subscription.
create or replace function set_notifier(name text, channel text, secrets text[], wants text[], kind text default null,
                                        recipients text[] default '{}', sender text default null, dashboard text default null,
                                        quiet text default null, escalate_after float8 default null, escalation text default null,
                                        enabled boolean default true, actor text default null, for_tenant text default null)
returns setof notifier language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(set_notifier.for_tenant, set_notifier.actor);
begin
    insert into notifier as n (tenant, name, channel, secrets, wants, kind, recipients, sender, dashboard, quiet, escalate_after,
                               escalation, enabled, set_by, created_at, updated_at)
    values (v_scope, set_notifier.name, set_notifier.channel, set_notifier.secrets, set_notifier.wants, set_notifier.kind,
            set_notifier.recipients, set_notifier.sender, set_notifier.dashboard, set_notifier.quiet, set_notifier.escalate_after,
            set_notifier.escalation, set_notifier.enabled, actor(), clock_now(), clock_now())
    on conflict (tenant, name) do update
       set channel = excluded.channel, secrets = excluded.secrets, wants = excluded.wants, kind = excluded.kind,
           recipients = excluded.recipients, sender = excluded.sender, dashboard = excluded.dashboard, quiet = excluded.quiet,
           escalate_after = excluded.escalate_after, escalation = excluded.escalation, enabled = excluded.enabled,
           set_by = excluded.set_by, updated_at = excluded.updated_at;
    return query select n.* from notifier n where n.tenant = v_scope and n.name = set_notifier.name;
end $$;

-- Delete a notifier. Returns false if it does not exist.
create or replace function remove_notifier(name text, actor text default null, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(remove_notifier.for_tenant, remove_notifier.actor);
begin
    delete from notifier n where n.tenant = v_scope and n.name = remove_notifier.name;
    return found;
end $$;

-- Record the verdict of the health that a notifier tells now. Returns false if another process has done so.
create or replace function tell_health(name text, was text, verdict text, for_tenant text default null) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(tell_health.for_tenant);
begin
    update notifier n set health = tell_health.verdict
     where n.tenant = v_scope and n.name = tell_health.name and n.health is not distinct from tell_health.was;
    return found;
end $$;
