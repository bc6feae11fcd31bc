-- Connector settings contain names of secrets, never the secrets: values that look like a secret are refused for every writer.
CREATE VIEW holdfast_connector_flaw AS
SELECT c.tenant, c.name
  FROM holdfast_connector c, json_each(c.headers) h
 WHERE CASE h.type
     WHEN 'text' THEN h.key LIKE '%auth%' OR h.key LIKE '%cookie%' OR h.key LIKE '%token%' OR h.key LIKE '%secret%'
                   OR h.key LIKE '%passw%' OR h.key LIKE '%credential%' OR h.key LIKE '%key%'
                   OR ltrim(h.value) LIKE 'bearer ________%' OR ltrim(h.value) LIKE 'basic ________%'
     WHEN 'object' THEN coalesce(json_extract(h.value, '$.secret'), '') NOT GLOB '[A-Z]*'
                     OR json_extract(h.value, '$.secret') GLOB '*[^A-Z0-9_]*'
                     OR length(json_extract(h.value, '$.secret')) > 100
                     OR length(coalesce(json_extract(h.value, '$.prefix'), '')) > 20
     ELSE 1 END
UNION ALL
SELECT c.tenant, c.name
  FROM holdfast_connector c, json_each(c.secrets) s
 WHERE s.type <> 'text' OR s.value NOT GLOB '[A-Z]*' OR s.value GLOB '*[^A-Z0-9_]*' OR length(s.value) > 100
UNION ALL
-- Secrets are sent only to listed hosts.
SELECT c.tenant, c.name
  FROM holdfast_connector c
 WHERE c.hosts = '[]' AND (c.secrets <> '[]' OR EXISTS (SELECT 1 FROM json_each(c.headers) h WHERE h.type = 'object'));

CREATE TRIGGER holdfast_guard_connector_insert AFTER INSERT ON holdfast_connector
BEGIN
    SELECT RAISE(ABORT, 'secret in settings: a header or the list contains a secret; use its name')
      FROM holdfast_connector_flaw f WHERE f.tenant = NEW.tenant AND f.name = NEW.name;
END;

CREATE TRIGGER holdfast_guard_connector_update AFTER UPDATE ON holdfast_connector
BEGIN
    SELECT RAISE(ABORT, 'secret in settings: a header or the list contains a secret; use its name')
      FROM holdfast_connector_flaw f WHERE f.tenant = NEW.tenant AND f.name = NEW.name;
END;
