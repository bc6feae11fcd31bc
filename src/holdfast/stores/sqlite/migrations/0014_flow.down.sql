ALTER TABLE holdfast_content DROP COLUMN since;
