-- The queues that are paused. No parameters.
SELECT name
FROM queues
WHERE paused_at IS NOT NULL
ORDER BY name
