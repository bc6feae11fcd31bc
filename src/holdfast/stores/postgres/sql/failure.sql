-- Return the delay before a retry by the rule of engine/retry.py, for callers that use only SQL. A test compares the two over
-- the whole range. Without a backoff the default policy (PATIENT) applies; a missing field has its default.
create or replace function backoff_delay(backoff jsonb, retry integer) returns interval language sql volatile
return make_interval(secs =>
    least(
        coalesce((backoff ->> 'cap')::float8, case when backoff is null then 7200 else 300 end),
        -- exp(ln) overflows past 700; no cap is that large.
        coalesce((backoff ->> 'base')::float8, 1) * exp(least(700,
            ln(coalesce((backoff ->> 'factor')::float8, case when backoff is null then 4 else 2 end))
            * greatest(0, retry - 1 - coalesce((backoff ->> 'head')::integer, 0))))
    ) * case when coalesce((backoff ->> 'jitter')::boolean, true) then random() else 1 end);

-- Return a message without its variable parts, so that equal failures are grouped, for callers that use only SQL. The rule is
-- that of engine/settlement.py, and a test compares the two over many messages.
create or replace function shape(message text) returns text language plpgsql immutable as $$
declare v_text text := left(message, 1000);
begin
    v_text := regexp_replace(v_text, '[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}', '<id>', 'g');
    v_text := regexp_replace(v_text, '[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}[0-9:.,]*(Z|[+-][0-9]{2}:?[0-9]{2})?', '<time>', 'g');
    v_text := regexp_replace(v_text, '[0-9]{4}-[0-9]{2}-[0-9]{2}', '<time>', 'g');
    v_text := regexp_replace(v_text, '"[^"]*"', '<text>', 'g');
    v_text := regexp_replace(v_text, '`[^`]*`', '<text>', 'g');
    v_text := regexp_replace(v_text, '(^|[^A-Za-z0-9''])''[^'']*''', E'\\1<text>', 'g');
    v_text := regexp_replace(v_text, E'(^|[^A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^ \\t\\r\\n]+', E'\\1<url>', 'g');
    v_text := regexp_replace(v_text, E'(^|[^A-Za-z0-9])[A-Za-z]:\\\\[^ \\t\\r\\n:,;)]+', E'\\1<path>', 'g');
    v_text := regexp_replace(v_text, E'(^|[^A-Za-z0-9</])/[^ \\t\\r\\n:,;)]+', E'\\1<path>', 'g');
    v_text := regexp_replace(v_text, '(^|[^A-Za-z0-9_])[A-Za-z_]*[0-9][A-Za-z0-9_]*', E'\\1<n>', 'g');
    v_text := regexp_replace(v_text, '(^|[^A-Za-z0-9_])[A-Fa-f]{8,}', E'\\1<n>', 'g');
    v_text := regexp_replace(v_text, '<n>([.,:]+<n>)+', '<n>', 'g');
    v_text := regexp_replace(v_text, E'[ \\t\\r\\n]+', ' ', 'g');
    return left(btrim(v_text, ' '), 300);
end $$;

-- Return the fingerprint of a failure: the key of its group of dead letters.
create or replace function fingerprint(kind text, code text, message text) returns text language sql immutable
return left(encode(sha256(convert_to(kind || E'\n' || code || E'\n' || shape(message) || E'\n', 'UTF8')), 'hex'), 16);
