-- While a tenant has a cap the switch says so: without it nobody would count.
DROP TRIGGER IF EXISTS judge_dispatch_ruled;
CREATE TRIGGER judge_dispatch_ruled BEFORE UPDATE OF ruled ON dispatch
WHEN OLD.ruled AND NOT NEW.ruled AND EXISTS (SELECT 1 FROM tenant WHERE max_pending IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'immutable: the jobs of a tenant are counted');
END;

DROP TRIGGER IF EXISTS judge_tenant_update;
CREATE TRIGGER judge_tenant_update BEFORE UPDATE OF tenant ON tenant WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: what a tenant is called never changes');
END;

DROP TRIGGER IF EXISTS judge_tenant_load_update;
CREATE TRIGGER judge_tenant_load_update BEFORE UPDATE OF tenant ON tenant_load WHEN OLD.tenant <> NEW.tenant
BEGIN
    SELECT RAISE(ABORT, 'immutable: what a tenant is called never changes');
END;
