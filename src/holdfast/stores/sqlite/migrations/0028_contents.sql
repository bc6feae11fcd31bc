-- Seals also keep the digests of payloads and results, by the event that brought them, and say whether there was more to seal.
-- Null in seals made before: nothing is known of the contents then.
ALTER TABLE seal ADD COLUMN contents BLOB;
ALTER TABLE seal ADD COLUMN cut INTEGER;
-- What was encrypted with another key is found by its job.
CREATE INDEX action_of_reseal ON action (name) WHERE verb = 'reseal';
