-- API tokens and sessions. Only their SHA-256 hashes are stored. A request with a token does not know its tenant yet: the
-- policy `presented` also shows a row to a caller that presents its hash. That is the only access across tenants; a caller
-- cannot list tokens it does not hold.
drop policy if exists presented on api_token;
-- A login pinned to a tenant sees no other tenant's tokens.
create policy presented on api_token using (
    hash = nullif(current_setting('holdfast.presented', true), '') and ((select pinned_tenant()) is null or tenant = (select pinned_tenant())));

-- Store a new API token by its hash, and return its row. The token itself never reaches the database.
create or replace function issue_token(id uuid, name text, roles text[], scopes text[], hash text, prefix text,
                                       expires_at timestamptz default null, lasting interval default null,
                                       actor text default null, for_tenant text default null) returns setof api_token
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_scope text := enter(issue_token.for_tenant, issue_token.actor);
begin
    if out_of_time(issue_token.expires_at) then
        perform refuse_time('expires_at');
    end if;
    perform check_span('lasting', issue_token.lasting, '1 second', '7300 days');
    return query
    insert into api_token as t (id, tenant, name, roles, scopes, hash, prefix, created_at, created_by, expires_at)
    values (issue_token.id, v_scope, issue_token.name, issue_token.roles, issue_token.scopes, issue_token.hash, issue_token.prefix,
            v_now, actor(), coalesce(issue_token.expires_at, v_now + issue_token.lasting))
    returning t.*;
end $$;

-- Revoke an API token and return its row. No row if this tenant has no such token; a token that was revoked before does not
-- change.
create or replace function revoke_token(id uuid, actor text default null, for_tenant text default null) returns setof api_token
language plpgsql security definer set search_path from current as $$
declare v_scope text := enter(revoke_token.for_tenant, revoke_token.actor);
begin
    update api_token t set revoked_at = clock_now(), revoked_by = actor()
     where t.id = revoke_token.id and (v_scope = '*' or t.tenant = v_scope) and t.revoked_at is null;
    return query select t.* from api_token t where t.id = revoke_token.id and (v_scope = '*' or t.tenant = v_scope);
end $$;

-- Return the API token with this hash, of any tenant. No row if the hash is unknown.
create or replace function token_of(token_hash text) returns setof api_token
language plpgsql security definer set search_path from current as $$
begin
    perform set_config('holdfast.presented', coalesce(token_of.token_hash, ''), true);
    return query select t.* from api_token t
     where t.hash = token_of.token_hash and t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_now())
       and (pinned_tenant() is null or t.tenant = pinned_tenant());
end $$;

-- Record that the token with this hash was used, at most once a minute.
create or replace function token_used(token_hash text) returns void
language plpgsql security definer set search_path from current as $$
declare v_now timestamptz := clock_now();
begin
    perform set_config('holdfast.presented', coalesce(token_used.token_hash, ''), true);
    update api_token t set last_used_at = v_now
     where t.hash = token_used.token_hash and (t.last_used_at is null or t.last_used_at <= v_now - interval '1 minute')
       and (pinned_tenant() is null or t.tenant = pinned_tenant());
end $$;

-- Open a session for an API token. A session has its token's rights and ends with it. No row if the token is not valid.
create or replace function open_session(token_hash text, id uuid, hash text, prefix text, ttl interval) returns setof api_token
language plpgsql security definer set search_path from current as $$
declare
    v_now   timestamptz := clock_now();
    v_token api_token;
begin
    perform check_span('ttl', open_session.ttl, '1 second');
    select t.* into v_token from token_of(open_session.token_hash) t where t.parent_id is null;
    if not found then
        return;
    end if;
    perform enter(v_token.tenant, v_token.name);
    return query
    insert into api_token as t (id, tenant, name, roles, scopes, hash, prefix, parent_id, created_at, created_by, expires_at)
    values (open_session.id, v_token.tenant, v_token.name, v_token.roles, v_token.scopes, open_session.hash, open_session.prefix,
            v_token.id, v_now, v_token.name, least(v_token.expires_at, v_now + open_session.ttl))
    returning t.*;
end $$;

-- End a session. Returns false if it does not exist or has ended.
create or replace function end_session(session_hash text) returns boolean
language plpgsql security definer set search_path from current as $$
declare v_session api_token;
begin
    select t.* into v_session from token_of(end_session.session_hash) t where t.parent_id is not null;
    if not found then
        return false;
    end if;
    perform enter(v_session.tenant, v_session.name);
    update api_token t set revoked_at = clock_now(), revoked_by = v_session.name where t.id = v_session.id and t.revoked_at is null;
    return found;
end $$;

-- A session has no more rights than its token and does not outlive it. The row of the token is locked: a concurrent revocation
-- either waits and then finds the session, or came first, and the session is refused.
create or replace function guard_session() returns trigger language plpgsql set search_path from current as $$
declare v_token api_token;
begin
    select t.* into v_token from api_token t where t.id = new.parent_id and t.tenant = new.tenant for share;
    if not found or v_token.parent_id is not null or v_token.revoked_at is not null or v_token.expires_at <= clock_now() then
        raise exception 'session: its token is revoked, expired or unknown' using errcode = 'ZH062';
    end if;
    if new.name <> v_token.name or new.roles <> v_token.roles or new.scopes <> v_token.scopes or new.expires_at > v_token.expires_at then
        raise exception 'session: it cannot have more rights than its token or outlive it' using errcode = 'ZH063';
    end if;
    return new;
end $$;
create or replace trigger guard_insert before insert on api_token for each row when (new.parent_id is not null)
    execute function guard_session();

create or replace function guard_api_token() returns trigger language plpgsql set search_path from current as $$
begin
    if to_jsonb(new) - array['last_used_at', 'revoked_at', 'revoked_by'] <> to_jsonb(old) - array['last_used_at', 'revoked_at', 'revoked_by']
       or old.revoked_at is not null and (new.revoked_at, new.revoked_by) is distinct from (old.revoked_at, old.revoked_by) then
        raise exception 'token %: its rights cannot change, and a revoked token stays revoked', old.prefix
            using errcode = 'ZH002', hint = 'Issue another token.';
    end if;
    return new;
end $$;
create or replace trigger guard_update before update on api_token for each row execute function guard_api_token();

-- Revoking a token ends its sessions, whichever way the token is revoked.
create or replace function end_sessions() returns trigger language plpgsql set search_path from current as $$
begin
    update api_token t set revoked_at = new.revoked_at, revoked_by = new.revoked_by
     where t.parent_id = new.id and t.revoked_at is null;
    return null;
end $$;
create or replace trigger end_sessions after update of revoked_at on api_token for each row
    when (old.revoked_at is null and new.revoked_at is not null and new.parent_id is null) execute function end_sessions();

-- Tokens that ended long ago may be deleted, as retention does; the audit record of who issued and revoked them stays.
create or replace trigger refuse_delete before delete on api_token for each row
    when ((least(old.revoked_at, old.expires_at)
           <= clock_now() - case when old.parent_id is null then interval '90 days' else interval '7 days' end) is not true)
    execute function refuse_change();
