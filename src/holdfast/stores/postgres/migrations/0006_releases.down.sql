drop table installed;
