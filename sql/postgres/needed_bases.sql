-- Base files that live jobs may still use, with the time since which a file must have been published for that.
SELECT base_filename, min(submitted_at) AS since
FROM jobs
WHERE base_filename IS NOT NULL
  AND state < 2
GROUP BY base_filename
