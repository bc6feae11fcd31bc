-- Messages to jobs, and output streams of handlers.

-- A message to one job, which its handler receives with ctx.receive. A step records which one it was.
create table message (
    id      uuid        not null primary key,
    tenant  text        not null,
    job_id  uuid        not null,
    n       integer     not null,   -- Order in which the job receives them; messages that were sent at once may share it.
    name    text        not null,
    data    json        not null,   -- Contents of the message, any JSON.
    asked   boolean     not null,   -- Whether its sender waits for an answer.
    key     text,                   -- Sent twice with the same key, it is one message.
    sent_by text        not null,   -- Who sent it.
    sent_at timestamptz not null,   -- When it was sent.
    constraint name_named check (ascii(name) > 32 and length(name) <= 90),
    constraint tenant_named check (ascii(tenant) > 32 and tenant <> '*'),
    constraint n_counted check (n >= 1),
    constraint key_bounded check (length(key) <= 255)
);
create index message_in_order on message (job_id, name, n, sent_at, id);
create unique index message_by_key on message (job_id, name, key) where key is not null;

-- What a handler wrote to its output streams, in parts of several chunks. A step that runs again replaces its parts.
create table stream_part (
    job_id   uuid        not null,
    tenant   text        not null,
    attempt  integer     not null,
    n        integer     not null,   -- Number of the part within the attempt, from 1.
    stream   text        not null,   -- Name of the stream.
    section  integer     not null,   -- Place in the handler: 2k - 1 is inside durable call k, 2k after it.
    replaces boolean     not null,   -- Whether an earlier run of this section had written parts, which were deleted.
    count    integer     not null,   -- Number of chunks.
    chunks   text        not null,   -- The chunks as a JSON array, or encrypted.
    at       timestamptz not null,   -- When the part was written.
    primary key (job_id, attempt, n),
    constraint stream_named check (ascii(stream) > 32 and length(stream) <= 90),
    constraint part_bounded check (octet_length(chunks) <= 800000),
    constraint numbers_bounded check (n between 1 and 1000000 and section >= 0 and count between 1 and 100000)
);
create index stream_part_by_age on stream_part (at);
