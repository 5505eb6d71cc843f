-- What there is in each queue, counted now. A time further ahead than any rule reaches (:horizon) counts as reached.
-- :now, :horizon
SELECT queue,
       count(*) FILTER (WHERE state = 0)                                                       AS queued,
       count(*) FILTER (WHERE state = 0 AND (due_at IS NULL OR due_at <= :now OR due_at > :horizon)) AS due,
       count(*) FILTER (WHERE state = 1)                                                       AS started,
       count(*) FILTER (WHERE state >= 2)                                                      AS failed,
       min(submitted_at) FILTER (WHERE state = 0)                                              AS oldest
FROM jobs
GROUP BY queue
ORDER BY queue
