-- How many slots a node has in each queue (JSON), so that others can say how long a job waits. NULL: an older program's.
ALTER TABLE nodes ADD COLUMN lanes TEXT COLLATE "C";
