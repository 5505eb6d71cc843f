-- Every token and every kept log's run that a row still names.
SELECT token AS token FROM jobs WHERE token IS NOT NULL
UNION
SELECT last_run FROM jobs WHERE last_run IS NOT NULL
