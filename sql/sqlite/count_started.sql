-- How many jobs of a queue take a slot: the started, and the failed whose processes do not die (they keep their token).
-- By the indexes of those states: the queued, who may be many, are not looked at. :queue
SELECT (SELECT count(*) FROM jobs WHERE state = 1 AND queue = :queue)
     + (SELECT count(*) FROM jobs WHERE state >= 2 AND token IS NOT NULL AND queue = :queue)
