-- Epochs of the ledger: the first, and one for each time that a copy of the file was adopted.
CREATE TABLE holdfast_ledger_epoch (
    number    INTEGER PRIMARY KEY,  -- Number of the epoch; the first is 0.
    first_seq INTEGER NOT NULL,     -- Events with this number or a greater one are of this epoch.
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL
) STRICT;
INSERT INTO holdfast_ledger_epoch (number, first_seq, at, actor)
VALUES (0, 1, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), 'migrate');
