-- A new job, queued. The caller has seen, under the write lock, that no row has this filename.
INSERT INTO jobs (title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank,
                  state, submitted_at, newer_than, due_at, waits_for, wait_until)
VALUES (:title, :lang, :font, :format, :options, :filename, :base_filename, :queue, :client, :meta, :pages, :priority,
        :rank, 0, :submitted_at, :newer_than, :due_at, :waits_for, :wait_until)
RETURNING id
