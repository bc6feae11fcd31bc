-- lost if exists (select 1 from holdfast_job_limit where refuse): limits that refuse new jobs
ALTER TABLE holdfast_content DROP COLUMN since;
ALTER TABLE holdfast_job_limit DROP COLUMN refuse;
