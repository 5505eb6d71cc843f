//! `export-queue`: makes EPUB, PDF and any other exports for web front ends without taking the site down.
//!
//! Nothing is a daemon. The state is a database, a cache directory and a few lock files; the program is a set of short
//! commands over them, plus workers that live as long as there is work. The front end calls `request` and polls `status`;
//! cron calls `dispatch`; a *worker* holds a *slot*, claims *jobs* and supervises one *exporter* at a time.
//!
//! # Rooms
//!
//! words → rules → hands → flows → faces: each may use only what stands before it. A *hand* touches one kind of outside
//! world, a *flow* is the only place where two hands meet, a *face* parses, calls a flow and prints.
//!
//! | level | rooms |
//! |---|---|
//! | words | [`job`] [`key`] [`exit`] [`clock`] [`config`] [`template`] [`layout`] [`identity`] [`fault`] |
//! | rules | [`rules`] (what a request does, order, back-off, what becomes of a lost run), [`forecast`], [`retention`] (facts + now → plan), [`stats`] |
//! | hands | [`lock`] [`store`] [`cache`] [`process`] [`exporter`] [`gates`] [`stop`] |
//! | flows | [`bind`] (opening and setting up) [`request`] [`recover`] [`work`] [`errand`] [`dispatch`] [`sweep`] [`check`] [`health`] [`metrics`] [`migrate`] |
//! | faces | [`cli`] [`commands`] [`output`] |
//!
//! # Invariants
//!
//! 1. At most N exporters live per queue and node at any instant, counted by processes, also across crashes.
//! 2. At most one exporter per key at any instant.
//! 3. A name in the cache appears by rename, complete, checked and synced; never empty, never half.
//! 4. No accepted job is lost: from the return of `request` on there is a row or a ready file (until it expires), also
//!    after a power cut.
//! 5. A `started` row always has someone behind it, or the next tick puts that right.
//! 6. A process that lost its token changes neither row nor cache.
//! 7. A file is not deleted while its path is promised; nothing that this program did not name is ever deleted; links are
//!    never followed.
//! 8. `status` and `request` never wait for an export, a sweep or another tick.
//! 9. A run is counted and committed before its exporter starts, so a job that kills its worker cannot loop for ever.
//! 10. Nothing that a title, a language or an exporter's output can hold changes what is run, where it writes, or how a
//!     line of output reads.
//! 11. No transaction, statement or file lock is held while an exporter runs (slot locks aside).
//! 12. Whatever is killed or frozen, at whatever instruction, the next ticks restore all of the above without a person.
//!
//! **Life is a lock, never a pid and never an age.** A slot lock that can be taken proves its worker dead. Lock order: slot
//! (only tried), cache, database; a transaction never waits for a file lock.
//!
//! # Left out on purpose
//!
//! No daemon, no shell, no "completed" state (a job whose file exists is deleted), no liveness by elapsed time.

pub mod bind;
pub mod cache;
pub mod check;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod dispatch;
pub mod errand;
pub mod exit;
pub mod exporter;
pub mod fault;
pub mod forecast;
pub mod gates;
pub mod health;
pub mod identity;
pub mod job;
pub mod key;
pub mod layout;
pub mod lock;
pub mod metrics;
pub mod migrate;
pub mod output;
pub mod process;
pub mod recover;
pub mod request;
pub mod retention;
pub mod rules;
pub mod stats;
pub mod stop;
pub mod store;
pub mod sweep;
pub mod template;
pub mod work;
