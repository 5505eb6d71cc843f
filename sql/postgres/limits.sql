-- What holds for one transaction and ends with it, so that a pooler may give the session to anybody afterwards: where the
-- tables are, and how long a statement, a wait for a row and a silent transaction may take.
SELECT set_config('search_path', 'export_queue', true),
       set_config('statement_timeout', '8s', true),
       set_config('lock_timeout', '5s', true),
       set_config('idle_in_transaction_session_timeout', '10s', true)
