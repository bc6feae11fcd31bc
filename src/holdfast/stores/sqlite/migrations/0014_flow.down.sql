-- lost if exists (select 1 from holdfast_dispatch where refusing is not null): limits that refuse new jobs
ALTER TABLE holdfast_content DROP COLUMN since;
ALTER TABLE holdfast_dispatch DROP COLUMN refusing;
