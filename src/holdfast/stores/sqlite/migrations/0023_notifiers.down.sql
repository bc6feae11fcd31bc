-- lost if exists (select 1 from holdfast_notifier): notifiers
DELETE FROM holdfast_subscription WHERE name LIKE 'notifier:%';
DROP TABLE holdfast_notifier;
