-- From now on this session is told of new jobs.
LISTEN export_queue
