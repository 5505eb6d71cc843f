-- The record of one run. A run that is recorded already (its worker died after writing it) stays as it is.
INSERT INTO runs (token, job_id, title, lang, font, format, options, filename, queue, client, meta, node, outcome, reason,
                  detail, submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory,
                  cpu_millis, present, fingerprint)
VALUES (:token, :job_id, :title, :lang, :font, :format, :options, :filename, :queue, :client, :meta, :node, :outcome,
        :reason, :detail, :submitted_at, :started_at, :finished_at, :published_at, :bytes, :exit_code, :signal,
        :peak_memory, :cpu_millis, :present, :fingerprint)
ON CONFLICT (token) DO NOTHING
