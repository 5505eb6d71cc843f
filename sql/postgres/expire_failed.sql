-- Failures shown long enough, and those beyond the number kept, oldest first. A failure from further ahead than the
-- clock can be wrong (:horizon) is as old as any. :before, :horizon, :max
DELETE FROM jobs
WHERE state >= 2
  AND token IS NULL
  AND (finished_at < :before OR finished_at > :horizon
       OR id IN (SELECT id FROM jobs WHERE state >= 2 ORDER BY finished_at DESC, id DESC OFFSET :max))
