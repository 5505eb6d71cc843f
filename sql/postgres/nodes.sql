-- Every node that was seen, the latest first, with the jobs that it has started.
SELECT id, name, version, slots, lanes, first_seen, last_seen,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint - last_seen AS silent,
       (SELECT count(*) FROM jobs WHERE jobs.node = nodes.id AND jobs.state = 1) AS started
FROM nodes
ORDER BY last_seen DESC, id
