-- lost if exists (select from endpoint): inbound webhooks
drop table endpoint;
