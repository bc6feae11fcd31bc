-- lost if exists (select 1 from holdfast_ledger_epoch where number > 0): the numbers of an adopted copy
DROP TABLE holdfast_ledger_epoch;
