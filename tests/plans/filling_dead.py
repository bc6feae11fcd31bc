"""Dead letters in their groups: the ten thousand that there are in one, and beside it twenty thousand groups, of which
half have nothing open."""

from __future__ import annotations

GROUPS = 20_000
LARGEST = "largest"
_LETTERS = "insert into dead_letter (job_id, tenant, fingerprint, kind, queue, buried_at)"
_GROUP = (
    "insert into dead_letter_group (tenant, fingerprint, kind, error_code, error_message, sample_job, first_at,"
    " last_at, times, open, last_job)"
)
_SAMPLE = "00000000-0000-7000-8000-000000000000"


def both(time: str, numbers: str, minimum: str, sample: str) -> tuple[str, ...]:
    return (
        f"{_LETTERS} select id, tenant, '{LARGEST}', kind, queue, finished_at from job_state"
        " where state = 'dead_letter'",
        f"{_GROUP} select tenant, '{LARGEST}', 'kind-1', 'broken', 'broken', {minimum}, min(buried_at), max(buried_at),"
        f" count(*), count(*), {minimum} from dead_letter group by tenant",
        f"{_GROUP} {numbers} select 'a', 'g-' || n, 'kind-' || (n % 20), 'broken', 'broken in ' || n, {sample}, {time},"
        f" {time}, 9, (n % 2) * (n % 7), {sample} from numbers",
    )


POSTGRES = both(
    "to_timestamp(1700000000 + n)",
    f"with numbers (n) as (select generate_series(1, {GROUPS}))",
    "min(job_id::text)::uuid",
    f"uuid '{_SAMPLE}'",
)
SQLITE = both(
    "1700000000000000 + n * 1000000",
    f"with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {GROUPS})",
    "min(job_id)",
    f"'{_SAMPLE}'",
)
