-- Wakes dispatchers that listen, when this transaction is committed.
SELECT pg_notify('export_queue', '')
