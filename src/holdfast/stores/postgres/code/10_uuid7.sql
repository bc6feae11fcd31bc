-- An id for rows inserted by hand (CX-2): UUIDv7, so that it sorts by creation like the application's own.
create or replace function uuid7() returns uuid language sql volatile
return encode(
    overlay(
        overlay(uuid_send(gen_random_uuid())
            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
            from 1 for 6)
        placing set_byte(substring(uuid_send(gen_random_uuid()) from 7 for 1), 0,
            get_byte(uuid_send(gen_random_uuid()), 6) & 15 | 112)
        from 7 for 1),
    'hex')::uuid;
