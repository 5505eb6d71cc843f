-- Jobs whose time has come are due. A time further ahead than any rule reaches (:horizon) counts as reached: the clock
-- was set back. One that somebody else works on is left to the next look. :now, :horizon
UPDATE jobs
SET due_at = NULL, waits_for = NULL
WHERE id IN (SELECT id
             FROM jobs
             WHERE state = 0
               AND due_at IS NOT NULL
               AND (due_at <= :now OR due_at > :horizon)
             FOR UPDATE SKIP LOCKED)
