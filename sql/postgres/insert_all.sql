-- New jobs, queued, in the order of the list; no row for a filename for which somebody else was quicker.
-- :rows (a JSON list of objects)
INSERT INTO jobs (title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank,
                  state, submitted_at, newer_than, due_at, waits_for, wait_until)
SELECT title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank, 0,
       submitted_at, newer_than, due_at, waits_for, wait_until
FROM json_populate_recordset(NULL::jobs, :rows::json)
ON CONFLICT (filename) DO NOTHING
RETURNING id, filename
