-- What was published since then: ticks look for jobs that it fulfils.
CREATE INDEX runs_published ON runs (published_at) WHERE present = 1;
