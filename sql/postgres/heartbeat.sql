-- A node shows that it is there, by the database's clock. :id, :name, :version, :slots, :lanes (JSON)
INSERT INTO nodes (id, name, version, slots, lanes, first_seen, last_seen)
VALUES (:id, :name, :version, :slots, :lanes, (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, version = excluded.version, slots = excluded.slots, lanes = excluded.lanes,
    last_seen = excluded.last_seen
