-- A new job, queued; no row when somebody else was quicker with this filename.
INSERT INTO jobs (title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank,
                  state, submitted_at, newer_than, due_at, waits_for, wait_until)
VALUES (:title, :lang, :font, :format, :options, :filename, :base_filename, :queue, :client, :meta, :pages, :priority,
        :rank, 0, :submitted_at, :newer_than, :due_at, :waits_for, :wait_until)
ON CONFLICT (filename) DO NOTHING
RETURNING id
