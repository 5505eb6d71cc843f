-- A queue may be written to again.
DROP TRIGGER moving_jobs_insert;
DROP TRIGGER moving_jobs_update;
DROP TRIGGER moving_jobs_delete;
DROP TRIGGER moving_interests_insert;
DROP TRIGGER moving_interests_update;
DROP TRIGGER moving_interests_delete;
DROP TRIGGER moving_runs_insert;
DROP TRIGGER moving_runs_update;
DROP TRIGGER moving_runs_delete;
DROP TRIGGER moving_queues_insert;
DROP TRIGGER moving_queues_update;
DROP TRIGGER moving_queues_delete;
DROP TRIGGER moving_deliveries_insert;
DROP TRIGGER moving_deliveries_update;
DROP TRIGGER moving_deliveries_delete;
