-- A failed job starts afresh: whoever asked for it before was told that it failed. :job_id
DELETE FROM interests
WHERE job_id = :job_id
