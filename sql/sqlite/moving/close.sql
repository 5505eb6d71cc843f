-- Nobody writes to a queue that moves to another database, whoever has it open: each write is refused as a whole.
CREATE TRIGGER moving_jobs_insert BEFORE INSERT ON jobs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_jobs_update BEFORE UPDATE ON jobs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_jobs_delete BEFORE DELETE ON jobs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_interests_insert BEFORE INSERT ON interests BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_interests_update BEFORE UPDATE ON interests BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_interests_delete BEFORE DELETE ON interests BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_runs_insert BEFORE INSERT ON runs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_runs_update BEFORE UPDATE ON runs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_runs_delete BEFORE DELETE ON runs BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_queues_insert BEFORE INSERT ON queues BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_queues_update BEFORE UPDATE ON queues BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_queues_delete BEFORE DELETE ON queues BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_deliveries_insert BEFORE INSERT ON deliveries BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_deliveries_update BEFORE UPDATE ON deliveries BEGIN SELECT raise(ABORT, 'the queue moves'); END;
CREATE TRIGGER moving_deliveries_delete BEFORE DELETE ON deliveries BEGIN SELECT raise(ABORT, 'the queue moves'); END;
