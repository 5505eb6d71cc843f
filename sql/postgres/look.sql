-- Whether the schema and the tables of a queue are there, and may be used by this user, to whom they else seem not to be there.
-- It reads the catalogs as tables: functions like to_regclass may
-- answer from what this session remembers, and somebody else may just have made them.
SELECT count(pg_namespace.oid)::int AS has_schema, count(pg_class.oid)::int AS is_there,
       count(*) FILTER (WHERE has_schema_privilege(pg_namespace.oid, 'USAGE'))::int AS may_use
FROM pg_namespace
LEFT JOIN pg_class ON pg_class.relnamespace = pg_namespace.oid AND pg_class.relname = 'meta'
WHERE pg_namespace.nspname = 'export_queue'
