//! Numbered migrations of the SQLite schema. They only add and never lose a row.
//!
//! `user_version` is the schema's number; the row `oldest_writer` in `meta` is the lowest schema number whose program may
//! still write, so that a machine can run two versions while it is being upgraded.

use anyhow::{Context, Result};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::moving::{self, CLOSED};
use crate::exit::Refusal;

/// Marks the file as a queue of this program ("EXPQ").
const APPLICATION_ID: i32 = 0x4558_5051;

/// Each migration, and the oldest schema whose program may still write after it.
const MIGRATIONS: &[(&str, u32)] = &[
    (include_str!("../../sql/sqlite/migrations/0001_first.sql"), 1),
    (include_str!("../../sql/sqlite/migrations/0002_steering.sql"), 1),
    (include_str!("../../sql/sqlite/migrations/0003_deliveries.sql"), 1),
    (include_str!("../../sql/sqlite/migrations/0004_use.sql"), 1),
    (include_str!("../../sql/sqlite/migrations/0005_freshness.sql"), 1),
];

/// The schema that this program writes.
pub const NEWEST: u32 = MIGRATIONS.len() as u32;

/// The oldest schema whose program may still write beside this one.
const OLDEST_WRITER: u32 = MIGRATIONS[MIGRATIONS.len() - 1].1;

/// What a database file turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A queue that this program can use as it is.
    Current,
    /// A queue of an older program.
    Older,
    /// An empty file.
    Empty,
}

/// Looks at an open database, without changing it.
///
/// # Errors
/// It is something else (78), or written by a program too new for this one (78).
pub fn look(conn: &Connection) -> Result<Found> {
    let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application == 0 && version == 0 {
        let objects: i64 = conn.query_row(include_str!("../../sql/sqlite/count_objects.sql"), [], |row| row.get(0))?;
        return if objects == 0 { Ok(Found::Empty) } else { Err(foreign()) };
    }
    if application != APPLICATION_ID {
        return Err(foreign());
    }
    let version = u32::try_from(version).map_err(|_| foreign())?;
    if version < NEWEST {
        return Ok(Found::Older);
    }
    if version > CLOSED
        && let Some(mark) = moving::mark_of(conn)?
    {
        return Err(mark.refusal());
    }
    if version > NEWEST && oldest_writer(conn)? > NEWEST {
        return Err(Refusal::config(format!(
            "the database has schema {version}, this program knows schemas up to {NEWEST}: install the newer export-queue"
        )));
    }
    Ok(Found::Current)
}

fn foreign() -> anyhow::Error {
    Refusal::config("it is the database of another program")
}

fn oldest_writer(conn: &Connection) -> Result<u32> {
    let text = meta(conn, "oldest_writer")?.context("the database does not say its oldest_writer")?;
    text.parse().context("reading oldest_writer")
}

/// Brings the schema up to date; safe when many processes do so at once. A new database gets `queue_id`.
///
/// # Errors
/// As [`look`], or the database cannot be written.
pub fn bring_up(conn: &mut Connection, queue_id: &str) -> Result<()> {
    if look(conn)? == Found::Current {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    bring_up_in(&tx, queue_id)?;
    Ok(tx.commit()?)
}

/// As [`bring_up`], in a transaction that is open.
pub(super) fn bring_up_in(tx: &Connection, queue_id: &str) -> Result<()> {
    // Somebody else may have been quicker; only under the write lock is the answer final.
    let is_new = match look(tx)? {
        Found::Current => return Ok(()),
        Found::Older => false,
        Found::Empty => true,
    };
    for (sql, oldest_writer) in MIGRATIONS.iter().skip(number(tx)? as usize) {
        tx.execute_batch(sql)?;
        set_meta(tx, "oldest_writer", &oldest_writer.to_string())?;
    }
    if is_new {
        set_meta(tx, "queue_id", queue_id)?;
    }
    Ok(tx.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {NEWEST}"))?)
}

/// Which schema a database holds, closed or not; `None` where it is empty.
///
/// # Errors
/// It is something else (78).
pub fn schema(conn: &Connection) -> Result<Option<u32>> {
    let application: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if application == APPLICATION_ID {
        return Ok(Some(number(conn)? % CLOSED));
    }
    look(conn).map(|_| None)
}

fn number(conn: &Connection) -> Result<u32> {
    Ok(conn.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// Whether the queue is closed for a move.
pub(super) fn is_closed(conn: &Connection) -> Result<bool> {
    Ok(number(conn)? > CLOSED)
}

/// Closes the queue to every program, or opens it again.
pub(super) fn set_closed(conn: &Connection, is_closed: bool) -> Result<()> {
    let (lead, oldest_writer) = if is_closed { (CLOSED, CLOSED + NEWEST) } else { (0, OLDEST_WRITER) };
    set_meta(conn, "oldest_writer", &oldest_writer.to_string())?;
    Ok(conn.execute_batch(&format!("PRAGMA user_version = {}", lead + NEWEST))?)
}

/// One fact about the database.
pub(super) fn meta(conn: &Connection, name: &str) -> Result<Option<String>> {
    let sql = include_str!("../../sql/sqlite/meta_get.sql");
    Ok(conn.query_row(sql, &[(":name", name)], |row| row.get(0)).optional()?)
}

/// Writes one fact about the database.
///
/// # Errors
/// The database cannot be written.
pub fn set_meta(conn: &Connection, name: &str, value: &str) -> Result<()> {
    conn.execute(include_str!("../../sql/sqlite/meta_set.sql"), &[(":name", name), (":value", value)])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_file_of_nobody_becomes_a_queue() {
        let found = |application: i32, version: i32, has_table: bool| {
            let conn = Connection::open_in_memory().unwrap();
            conn.execute_batch(&format!("PRAGMA application_id = {application}; PRAGMA user_version = {version}"))
                .unwrap();
            if has_table {
                conn.execute_batch("CREATE TABLE mine (x)").unwrap();
            }
            look(&conn).map_err(|error| error.to_string())
        };
        let foreign = || Err(foreign().to_string());
        assert_eq!(found(0, 0, false), Ok(Found::Empty));
        for (application, version, has_table) in [(0, 0, true), (0, 7, false), (7, 0, false), (7, 1, true)] {
            assert_eq!(found(application, version, has_table), foreign(), "{application} {version} {has_table}");
        }
        assert_eq!(found(APPLICATION_ID, 1, true), Ok(Found::Older));
        assert_eq!(found(APPLICATION_ID, NEWEST as i32, true), Ok(Found::Current));
        assert_eq!(found(APPLICATION_ID, -1, true), foreign());
    }

    #[test]
    fn a_newer_schema_says_who_may_still_write() {
        let found = |oldest_writer: u32| {
            let mut conn = Connection::open_in_memory().unwrap();
            bring_up(&mut conn, "the id").unwrap();
            set_meta(&conn, "oldest_writer", &oldest_writer.to_string()).unwrap();
            conn.execute_batch(&format!("PRAGMA user_version = {}", NEWEST + 1)).unwrap();
            look(&conn)
        };
        assert_eq!(found(NEWEST).unwrap(), Found::Current);
        assert!(found(NEWEST + 1).unwrap_err().to_string().contains("install the newer export-queue"));
    }
}
