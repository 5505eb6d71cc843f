//! All tests: one binary, one file per command and per flow.

mod crash;
mod docs;
mod guards;
mod harness;
mod scripts;

mod kills;
mod power;
mod process;
mod recover;
mod storm;

mod cache;
mod commands;
mod confine;
mod converters;
mod corpus;
mod counts;
mod cron;
mod database;
mod environment;
mod examples;
mod fair;
mod freshness;
mod gates;
#[cfg(feature = "postgres")]
mod hosts;
mod lasting;
mod locks;
#[cfg(feature = "postgres")]
mod migrate;
mod model;
mod names;
#[cfg(feature = "postgres")]
mod nodes;
mod notify;
mod observe;
mod offenders;
mod people;
#[cfg(feature = "postgres")]
mod plans;
#[cfg(feature = "postgres")]
mod postgres;
mod rooms;
mod steering;
mod store;
mod surroundings;
mod walking;
