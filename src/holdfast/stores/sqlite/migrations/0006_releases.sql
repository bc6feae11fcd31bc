-- What the code of the last migration installed, so that the next one knows what to remove.
CREATE TABLE holdfast_installed (
    name TEXT NOT NULL PRIMARY KEY   -- Kind and name of a view or a trigger.
) STRICT;
