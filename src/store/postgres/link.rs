//! The connection: one session, one transaction at a time, every wait bounded.
//!
//! Nothing is left in a session when a transaction ends (statements are unnamed, limits are set inside transactions, no
//! session locks), so that a pooler in transaction mode may stand between. A transaction that fails before its commit was
//! sent has done nothing and is begun again, on a new session if need be; of a commit without an answer nobody knows.
//!
//! The client library is asynchronous; this room is where that ends. Its runtime lives in the calling thread and runs only
//! while a call waits.

use std::future::Future;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::params::{Param, numbered};
use super::place::Place;
use super::trouble::{self, Silent};
use crate::clock;
use crate::store::Patience;

/// The pause before a transaction is begun again.
const PAUSE: Duration = Duration::from_millis(50);

/// How every transaction begins, in one message.
const BEGIN: &str = concat!(sql!("begin"), ";", sql!("limits"));

/// A connection to the database, made when it is needed and made again when it was lost.
pub(super) struct Link {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    place: Place,
    patience: Patience,
    opened: Duration,
    client: Option<Client>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("place", &self.place.shown).finish_non_exhaustive()
    }
}

/// One transaction that is open.
pub(super) struct Transaction<'a> {
    runtime: &'a Runtime,
    client: &'a Client,
    until: Duration,
}

/// What a transaction came to, and whether it shall stay.
pub(super) enum End<T> {
    /// It stays.
    Commit(T),
    /// It is taken back.
    Rollback(T),
}

struct Failed {
    error: anyhow::Error,
    /// Trying again would not help, or might do the same twice.
    is_final: bool,
}

impl Link {
    pub(super) fn new(place: Place, patience: Patience) -> Result<Self> {
        let runtime =
            Builder::new_current_thread().enable_io().enable_time().build().context("preparing to connect")?;
        Ok(Self { runtime: Some(runtime), place, patience, opened: clock::monotonic(), client: None })
    }

    /// Runs a transaction, and again where it failed in passing.
    pub(super) fn transact<T>(&mut self, mut body: impl FnMut(&Transaction<'_>) -> Result<End<T>>) -> Result<T> {
        let each = clock::monotonic() + self.patience.each;
        let until = self.patience.in_all.map_or(each, |in_all| each.min(self.opened + in_all));
        loop {
            match self.attempt(until, &mut body) {
                Ok(value) => return Ok(value),
                Err(failed) if failed.is_final || clock::monotonic() + PAUSE >= until => {
                    return Err(trouble::explain(&self.place.shown, failed.error));
                }
                Err(failed) => tracing::debug!("beginning again: {:#}", failed.error),
            }
            thread::sleep(PAUSE);
        }
    }

    fn attempt<T>(
        &mut self,
        until: Duration,
        body: &mut impl FnMut(&Transaction<'_>) -> Result<End<T>>,
    ) -> Result<T, Failed> {
        let Some(runtime) = &self.runtime else {
            return Err(Failed { error: anyhow::anyhow!("the connection is closed"), is_final: true });
        };
        let kept = self.client.take().filter(|client| !client.is_closed());
        let client = match kept.map_or_else(|| connect(runtime, &self.place, until), Ok) {
            Ok(client) => client,
            Err(error) => {
                let is_final = !(self.patience.insists && trouble::is_away(&error));
                return Err(Failed { error, is_final });
            }
        };
        let tx = Transaction { runtime, client: &client, until };
        let ended = tx.run(body);
        if !matches!(&ended, Err(failed) if trouble::is_lost(&failed.error)) {
            self.client = Some(client);
        }
        ended
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A name that is still being looked up is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn connect(runtime: &Runtime, place: &Place, until: Duration) -> Result<Client> {
    within(runtime, until, async {
        let (client, connection) = place.config.connect(place.tls.clone()).await?;
        tokio::spawn(connection);
        Ok(client)
    })
}

fn within<T>(
    runtime: &Runtime,
    until: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    let left = until.saturating_sub(clock::monotonic());
    Ok(runtime.block_on(async { tokio::time::timeout(left, work).await }).map_err(|_| Silent)??)
}

impl Transaction<'_> {
    fn run<T>(&self, body: &mut impl FnMut(&Self) -> Result<End<T>>) -> Result<T, Failed> {
        let passing = |error| Failed { error, is_final: false };
        self.batch(BEGIN).map_err(passing)?;
        match body(self) {
            Ok(End::Commit(value)) => match self.batch(sql!("commit")) {
                Ok(()) => Ok(value),
                // Only where the server itself says so, nothing was committed.
                Err(error) => Err(Failed { is_final: !is_conflict(&error), error }),
            },
            Ok(End::Rollback(value)) => self.batch(sql!("rollback")).map(|()| value).map_err(passing),
            Err(error) if trouble::is_lost(&error) => Err(passing(error)),
            Err(error) => {
                let is_final = !is_conflict(&error);
                self.batch(sql!("rollback")).map_err(passing)?;
                Err(Failed { error, is_final })
            }
        }
    }

    /// The rows of a statement with named parameters.
    pub(super) fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let (sql, params) = numbered(sql, params)?;
        within(self.runtime, self.until, self.client.query_typed(&sql, &params))
    }

    /// The first row of a statement, if there is one.
    pub(super) fn first(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    /// Runs a statement; how many rows it changed.
    pub(super) fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let (sql, params) = numbered(sql, params)?;
        within(self.runtime, self.until, self.client.execute_typed(&sql, &params))
    }

    /// Runs statements without parameters, in one message.
    pub(super) fn batch(&self, sql: &str) -> Result<()> {
        within(self.runtime, self.until, self.client.batch_execute(sql))
    }
}

/// Another transaction was in the way: this one has done nothing and may be begun again.
fn is_conflict(error: &anyhow::Error) -> bool {
    let conflicts = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    trouble::state_of(error).is_some_and(|state| conflicts.contains(&state))
}
