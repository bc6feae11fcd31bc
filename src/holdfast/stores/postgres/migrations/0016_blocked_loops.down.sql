alter table lease drop column blocked_at, drop column blocked_in;
