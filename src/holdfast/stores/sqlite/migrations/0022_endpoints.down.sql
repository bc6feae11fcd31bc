-- lost if exists (select 1 from holdfast_endpoint): inbound webhooks
DROP TABLE holdfast_endpoint;
