-- Seals also keep the digests of payloads and results, by the event that brought them, and say whether there was more to seal.
-- Null in seals made before: nothing is known of the contents then.
alter table seal add column contents bytea, add column cut integer;
alter table seal alter column contents set storage external;   -- nothing to compress
-- What was encrypted with another key is found by its job.
create index action_of_reseal on action (name) where verb = 'reseal';
