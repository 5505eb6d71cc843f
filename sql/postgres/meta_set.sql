-- Writes one fact about the database itself. :name, :value
INSERT INTO meta (name, value)
VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
