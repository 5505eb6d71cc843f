-- The fingerprint of a run was compared. :token, :now
UPDATE runs
SET checked_at = :now
WHERE token = :token
