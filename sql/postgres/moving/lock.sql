-- Nobody else writes while the rows of a queue arrive; and the limits of one transaction that moves all of them.
LOCK TABLE jobs, interests, runs, queues, deliveries IN EXCLUSIVE MODE;
SELECT set_config('statement_timeout', '10min', true), set_config('idle_in_transaction_session_timeout', '10min', true)
