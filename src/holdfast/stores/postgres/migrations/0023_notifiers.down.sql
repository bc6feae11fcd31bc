-- lost if exists (select from notifier): notifiers
delete from subscription where name like 'notifier:%';
drop table notifier;
