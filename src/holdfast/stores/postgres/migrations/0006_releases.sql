-- What the code of the last migration installed, so that the next one knows what to remove.
create table installed (
    name text not null primary key   -- Kind and name of a function, a view, a trigger or a policy.
);
