//! All tests: one binary, one file per command and per flow.

mod crash;
mod harness;
mod scripts;

mod process;

mod cache;
mod commands;
mod converters;
mod cron;
mod database;
mod environment;
mod examples;
mod names;
mod locks;
mod people;
mod store;
mod rooms;
mod walking;
