-- A job is claimed under a live lease, and a holder is declared lost only if its lease has expired. Called by
-- record_transition with one entry per lease. Each lease is looked up by key: a join would read them all, and there may be one
-- per job.
create or replace function check_leases(p_jobs uuid[], p_leases uuid[], p_taken boolean[], p_now timestamptz) returns void
language plpgsql set search_path from current as $$
declare v_bad record;
begin
    select t.job, t.lease, t.taken into v_bad from unnest(p_jobs, p_leases, p_taken) as t(job, lease, taken)
     where case when t.taken then (select l.ended_at is null and l.name <> 'generator' from lease l where l.id = t.lease) is not true
                else (select l.ended_at is null and l.until > p_now from lease l where l.id = t.lease) is true end
     limit 1;
    if not found then
        return;
    end if;
    if v_bad.taken then
        raise exception 'job % cannot be claimed under lease %: it is not a live lease', v_bad.job, v_bad.lease
            using errcode = 'ZH003', hint = 'Open a lease first: select * from open_lease(…).';
    end if;
    raise exception 'job % cannot be declared lost: lease % is still live', v_bad.job, v_bad.lease
        using errcode = 'ZH003';
end $$;
