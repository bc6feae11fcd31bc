-- A tenant's settings cannot move to another tenant.
DROP TRIGGER IF EXISTS holdfast_judge_tenant_update;
CREATE TRIGGER holdfast_judge_tenant_update BEFORE UPDATE OF tenant ON holdfast_tenant WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: the name of a tenant cannot change');
END;

DROP TRIGGER IF EXISTS holdfast_judge_tenant_load_update;
CREATE TRIGGER holdfast_judge_tenant_load_update BEFORE UPDATE OF tenant ON holdfast_tenant_load WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: the name of a tenant cannot change');
END;
