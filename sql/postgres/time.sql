-- The clock that all nodes share, in milliseconds UTC.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
