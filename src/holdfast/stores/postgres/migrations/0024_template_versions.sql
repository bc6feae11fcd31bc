-- Old versions of a template may go now (25_schedules.sql judges which); before, none could.
drop trigger if exists refuse_delete on template;
