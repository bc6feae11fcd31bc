-- lost if exists (select 1 from holdfast_message): messages to jobs
-- lost if exists (select 1 from holdfast_stream_part): output streams
DROP TABLE holdfast_message;
DROP TABLE holdfast_stream_part;
