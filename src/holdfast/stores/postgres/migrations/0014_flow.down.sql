alter table content drop column since;
