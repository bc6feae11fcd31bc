-- lost if exists (select from message): messages to jobs
-- lost if exists (select from stream_part): output streams
drop table message, stream_part;
