-- What there is in each queue, counted now. A time further ahead than any rule reaches (:horizon) counts as reached.
-- :now, :horizon
SELECT queue,
       sum(state = 0)                                             AS queued,
       sum(state = 0 AND (due_at IS NULL OR due_at <= :now OR due_at > :horizon)) AS due,
       sum(state = 1)                                             AS started,
       sum(state >= 2)                                            AS failed,
       min(CASE WHEN state = 0 THEN submitted_at END)             AS oldest
FROM jobs
GROUP BY queue
ORDER BY queue
