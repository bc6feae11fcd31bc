-- The rule of engine/retry.py for callers that have only SQL. A test compares the two over the whole range.
create or replace function backoff_delay(backoff jsonb, retry integer) returns interval language sql volatile
return make_interval(secs =>
    least(
        coalesce((backoff ->> 'cap')::float8, 300),
        -- exp(ln) overflows past 700; no cap is that far away.
        coalesce((backoff ->> 'base')::float8, 1) * exp(least(700,
            ln(coalesce((backoff ->> 'factor')::float8, 2))
            * greatest(0, retry - 1 - coalesce((backoff ->> 'head')::integer, 0))))
    ) * case when coalesce((backoff ->> 'jitter')::boolean, true) then random() else 1 end);
