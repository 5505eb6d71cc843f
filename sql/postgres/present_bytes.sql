-- How large all files together are that nobody has seen gone.
SELECT coalesce(sum(bytes), 0)::bigint AS counted
FROM runs
WHERE present = 1
