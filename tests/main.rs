//! All tests: one binary, one file per command and per flow.

mod crash;
mod harness;
mod scripts;

mod process;

mod commands;
mod converters;
mod cron;
mod environment;
mod names;
mod cache;
mod database;
mod people;
mod store;
mod walking;
