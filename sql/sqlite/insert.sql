-- A new job, queued; nothing where a row has this filename. Without RETURNING, for whose sake SQLite would copy every page
-- that a row touches into a journal of its own.
INSERT INTO jobs (title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank,
                  state, submitted_at, newer_than, due_at, waits_for, wait_until)
VALUES (:title, :lang, :font, :format, :options, :filename, :base_filename, :queue, :client, :meta, :pages, :priority,
        :rank, 0, :submitted_at, :newer_than, :due_at, :waits_for, :wait_until)
ON CONFLICT (filename) DO NOTHING
