-- lost if exists (select from dispatch where refusing is not null): limits that refuse new jobs
alter table content drop column since;
alter table dispatch drop column refusing;
