-- lost if exists (select from job_limit where refuse): limits that refuse new jobs
alter table content drop column since;
alter table job_limit drop column refuse;
