-- A tenant's settings cannot move to another tenant.
DROP TRIGGER IF EXISTS judge_tenant_update;
CREATE TRIGGER judge_tenant_update BEFORE UPDATE OF tenant ON tenant WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: the name of a tenant cannot change');
END;

DROP TRIGGER IF EXISTS judge_tenant_load_update;
CREATE TRIGGER judge_tenant_load_update BEFORE UPDATE OF tenant ON tenant_load WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: the name of a tenant cannot change');
END;
