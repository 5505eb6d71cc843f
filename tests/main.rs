//! All tests: one binary, one file per command and per flow.

mod harness;

mod walking;
