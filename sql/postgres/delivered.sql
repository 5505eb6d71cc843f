-- It was told. :id
DELETE FROM deliveries
WHERE id = :id
