//! What a PostgreSQL error means for the caller: an exit code, and words that name the database and the mend.

use std::error::Error;

use tokio_postgres::error::SqlState;

use crate::exit::{Exit, Refusal};

/// The database gave no answer in time.
#[derive(Debug)]
pub(super) struct Silent;

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no answer in time")
    }
}

impl Error for Silent {}

/// Errors by which the server ends a session.
const ENDED: &[SqlState] =
    &[SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT];

fn of_client(error: &anyhow::Error) -> Option<&tokio_postgres::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// What the server itself says of an error.
pub(super) fn state_of(error: &anyhow::Error) -> Option<SqlState> {
    of_client(error)?.code().cloned()
}

fn is_silent(error: &anyhow::Error) -> bool {
    error.chain().any(<dyn Error>::is::<Silent>)
}

/// Whether the session is gone, or nobody knows how it stands.
pub(super) fn is_lost(error: &anyhow::Error) -> bool {
    is_silent(error)
        || of_client(error).is_some_and(|error| match error.code() {
            None => is_broken(error),
            Some(state) => is_of_class(state, &["08"]) || ENDED.contains(state),
        })
}

/// Whether no session could be had now, and one may be had in a moment.
pub(super) fn is_away(error: &anyhow::Error) -> bool {
    of_client(error).is_some_and(|error| match error.code() {
        None => is_broken(error),
        Some(state) => is_of_class(state, &["08", "53", "57"]),
    })
}

fn is_broken(error: &tokio_postgres::Error) -> bool {
    let is_of_socket = || error.source().is_some_and(<dyn Error>::is::<std::io::Error>);
    error.is_closed() || (mend_of(error).is_none() && is_of_socket())
}

/// What to look at where the client library cannot get in with what it was told; it says so in words only.
fn mend_of(error: &tokio_postgres::Error) -> Option<&'static str> {
    match error.to_string().as_str() {
        "error performing TLS handshake" => Some("TLS does not work: see sslmode and sslrootcert in `database`"),
        "invalid configuration" | "authentication error" => {
            Some("the server wants another way in: see the password and channel_binding in `database`")
        }
        _ => None,
    }
}

fn is_of_class(state: &SqlState, classes: &[&str]) -> bool {
    classes.iter().any(|class| state.code().starts_with(class))
}

/// Gives an error the exit code and the words that it deserves; errors that are not the database's stay as they are.
pub(super) fn explain(place: &str, error: anyhow::Error) -> anyhow::Error {
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return Refusal::with(refusal.exit, format!("{place}: {}", refusal.message));
    }
    if is_silent(&error) {
        return Refusal::try_later(format!("{place}: the database does not answer; try again later"));
    }
    let Some(cause) = of_client(&error) else {
        return error;
    };
    let words = words_of(cause);
    let meaning = match cause.code() {
        None if is_broken(cause) => Some((Exit::TryLater, "the database is not to be reached; try again later")),
        None => mend_of(cause).map(|mend| (Exit::Config, mend)),
        Some(state) => meaning_of(state),
    };
    match meaning {
        Some((exit, meaning)) => Refusal::with(exit, format!("{place}: {meaning} ({words})")),
        None => error.context(format!("using {place}")),
    }
}

fn meaning_of(state: &SqlState) -> Option<(Exit, &'static str)> {
    match state.code() {
        "25006" => Some((Exit::TryLater, "the database may only be read now; try again later")),
        "EQ001" => Some((Exit::TryLater, "the queue moves to another database, or has moved; try again later")),
        "42501" => Some((Exit::NotPermitted, "this database user lacks a right")),
        "3D000" => Some((Exit::Config, "there is no such database")),
        "42P01" | "3F000" => {
            Some((Exit::Config, "it holds no queue: run `export-queue init` as the user who runs exports"))
        }
        _ if is_of_class(state, &["28"]) => Some((Exit::Config, "the database does not accept this user or password")),
        _ if is_of_class(state, &["08", "40", "53", "55", "57", "58", "XX"]) => {
            Some((Exit::TryLater, "the database is busy or away; try again later"))
        }
        _ => None,
    }
}

fn words_of(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(told), _) => told.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}
