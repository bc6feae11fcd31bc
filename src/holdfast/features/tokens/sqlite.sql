-- API tokens and sessions: a token's rights never change, a revoked token stays revoked, and a session has no more rights than
-- its token and does not outlive it.
CREATE TRIGGER holdfast_guard_api_token_insert BEFORE INSERT ON holdfast_api_token
BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: roles_known')
     WHERE EXISTS (SELECT 1 FROM json_each(NEW.roles)
                    WHERE value NOT IN ('viewer', 'producer', 'operator', 'approver', 'executor', 'admin'));
    SELECT RAISE(ABORT, 'CHECK constraint failed: scopes_known')
     WHERE EXISTS (SELECT 1 FROM json_each(NEW.scopes)
                    WHERE value NOT IN ('read', 'enqueue', 'operate', 'decide', 'work', 'admin'));
END;

CREATE TRIGGER holdfast_guard_session_insert BEFORE INSERT ON holdfast_api_token WHEN NEW.parent_id IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'token ended: the token of the session is revoked, expired or unknown')
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_api_token t WHERE t.id = NEW.parent_id AND t.tenant = NEW.tenant AND t.parent_id IS NULL
                          AND t.revoked_at IS NULL
                          AND (t.expires_at IS NULL OR t.expires_at > (SELECT now FROM holdfast_present)));
    SELECT RAISE(ABORT, 'session too wide: it cannot have more rights than its token or outlive it')
     WHERE EXISTS (SELECT 1 FROM holdfast_api_token t WHERE t.id = NEW.parent_id
                      AND (t.name <> NEW.name OR t.roles <> NEW.roles OR t.scopes <> NEW.scopes OR NEW.expires_at > t.expires_at));
END;

CREATE TRIGGER holdfast_guard_api_token_update BEFORE UPDATE ON holdfast_api_token
WHEN OLD.id IS NOT NEW.id OR OLD.tenant IS NOT NEW.tenant OR OLD.name IS NOT NEW.name OR OLD.roles IS NOT NEW.roles
  OR OLD.scopes IS NOT NEW.scopes OR OLD.hash IS NOT NEW.hash OR OLD.prefix IS NOT NEW.prefix
  OR OLD.parent_id IS NOT NEW.parent_id OR OLD.created_at IS NOT NEW.created_at OR OLD.created_by IS NOT NEW.created_by
  OR OLD.expires_at IS NOT NEW.expires_at
  OR OLD.revoked_at IS NOT NULL AND (OLD.revoked_at IS NOT NEW.revoked_at OR OLD.revoked_by IS NOT NEW.revoked_by)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the rights of a token cannot change, and a revoked token stays revoked');
END;

-- Revoking a token ends its sessions, whichever way the token is revoked.
CREATE TRIGGER holdfast_end_sessions AFTER UPDATE OF revoked_at ON holdfast_api_token
WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL AND NEW.parent_id IS NULL
BEGIN
    UPDATE holdfast_api_token SET revoked_at = NEW.revoked_at, revoked_by = NEW.revoked_by
     WHERE parent_id = NEW.id AND revoked_at IS NULL;
END;

-- Tokens that ended long ago may be deleted, as retention does; the audit record of who issued and revoked them stays.
CREATE TRIGGER holdfast_refuse_api_token_delete BEFORE DELETE ON holdfast_api_token
WHEN coalesce(min(coalesce(OLD.revoked_at, OLD.expires_at), coalesce(OLD.expires_at, OLD.revoked_at))
              > (SELECT now FROM holdfast_present) - CASE WHEN OLD.parent_id IS NULL THEN 90 ELSE 7 END * 86400000000, 1)
BEGIN
    SELECT RAISE(ABORT, 'immutable: tokens are kept for ninety days after they end; revoke the token instead');
END;
