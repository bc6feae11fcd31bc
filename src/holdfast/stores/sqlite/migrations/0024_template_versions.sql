-- Old versions of a template may go now (25_schedules.sql judges which); before, none could.
DROP TRIGGER IF EXISTS refuse_template_delete;
