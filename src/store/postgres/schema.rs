//! Numbered migrations of the PostgreSQL schema. They only add and never lose a row.
//!
//! The rows `schema` and `oldest_writer` of `meta` say which schema it is and the lowest one whose program may still write,
//! so that machines can run two versions while they are being upgraded. Whoever changes the schema holds a lock that ends
//! with its transaction: ten first starts at once make one schema, and one that is killed leaves nothing.

use anyhow::{Context, Result};

use super::link::Transaction;
use super::params::named;
use super::rows::{sure_int, sure_text};
use crate::exit::{Exit, Refusal};
use crate::store::moving::{CLOSED, FACT, Mark};

/// Each migration, and the oldest schema whose program may still write after it.
const MIGRATIONS: &[(&str, u32)] = &[
    (include_str!("../../../sql/postgres/migrations/0001_first.sql"), 1),
    (include_str!("../../../sql/postgres/migrations/0002_published.sql"), 1),
    (include_str!("../../../sql/postgres/migrations/0003_heads.sql"), 1),
    (include_str!("../../../sql/postgres/migrations/0004_lanes.sql"), 1),
];

/// The schema that this program writes.
pub const NEWEST: u32 = MIGRATIONS.len() as u32;

/// The oldest schema whose program may still write beside this one.
const OLDEST_WRITER: u32 = MIGRATIONS[MIGRATIONS.len() - 1].1;

/// What the database turned out to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A queue that this program can use as it is.
    Current,
    /// A queue of an older program, with that schema.
    Older(u32),
    /// No queue.
    Nothing,
}

/// Looks, without changing anything.
///
/// # Errors
/// It was written by a program too new for this one (78), this database user may not use it (77), or the database cannot be
/// used.
pub(super) fn look(tx: &Transaction<'_>) -> Result<Found> {
    let there = there(tx)?;
    if !there("is_there")? {
        return Ok(Found::Nothing);
    }
    if !there("may_use")? {
        let words = "this database user may not use the schema export_queue: the owner must GRANT USAGE on it";
        return Err(Refusal::with(Exit::NotPermitted, words));
    }
    let version = number(tx, "schema")?;
    if version > CLOSED
        && let Some(mark) = mark(tx)?
    {
        return Err(mark.refusal());
    }
    if version < NEWEST {
        return Ok(Found::Older(version));
    }
    if version > NEWEST && number(tx, "oldest_writer")? > NEWEST {
        return Err(Refusal::config(format!(
            "the database has schema {version}, this program knows schemas up to {NEWEST}: install the newer export-queue"
        )));
    }
    Ok(Found::Current)
}

/// What there is, by its name in `look.sql`.
fn there(tx: &Transaction<'_>) -> Result<impl Fn(&str) -> Result<bool>> {
    let row = tx.first(sql!("look"), &[])?.context("looking at the schema")?;
    Ok(move |what: &str| Ok(sure_int(&row, what)? == 1))
}

/// Which schema the database holds, closed or not; `None` where it holds no queue.
pub(super) fn version(tx: &Transaction<'_>) -> Result<Option<u32>> {
    Ok(if there(tx)?("is_there")? { Some(number(tx, "schema")? % CLOSED) } else { None })
}

/// Whether the queue is closed for a move.
pub(super) fn is_closed(tx: &Transaction<'_>) -> Result<bool> {
    Ok(number(tx, "schema")? > CLOSED)
}

/// Closes the queue to every program, or opens it again.
pub(super) fn set_closed(tx: &Transaction<'_>, is_closed: bool) -> Result<()> {
    let (lead, oldest_writer) = if is_closed { (CLOSED, CLOSED + NEWEST) } else { (0, OLDEST_WRITER) };
    set_meta(tx, "oldest_writer", &oldest_writer.to_string())?;
    set_meta(tx, "schema", &(lead + NEWEST).to_string())
}

/// What the database says of the last move.
pub(super) fn mark(tx: &Transaction<'_>) -> Result<Option<Mark>> {
    let row = tx.first(sql!("meta_get"), named! {":name": FACT})?;
    row.map(|row| sure_text(&row, "value")?.parse()).transpose()
}

/// One fact about the database.
pub(super) fn meta(tx: &Transaction<'_>, name: &str) -> Result<String> {
    let row = tx.first(sql!("meta_get"), named! {":name": name})?;
    sure_text(&row.with_context(|| format!("the database does not say its {name}"))?, "value")
}

/// Whether the queue has a cache.
pub(super) fn has_cache(tx: &Transaction<'_>) -> Result<bool> {
    Ok(tx.first(sql!("meta_get"), named! {":name": "cache"})?.is_some())
}

/// Notes that it has one.
pub(super) fn note_cache(tx: &Transaction<'_>) -> Result<()> {
    set_meta(tx, "cache", "bound")
}

/// Writes one fact about the database.
pub(super) fn set_meta(tx: &Transaction<'_>, name: &str, value: &str) -> Result<()> {
    tx.execute(sql!("meta_set"), named! {":name": name, ":value": value}).map(drop)
}

fn number(tx: &Transaction<'_>, name: &str) -> Result<u32> {
    meta(tx, name)?.parse().with_context(|| format!("reading {name}"))
}

/// Brings the schema up to date; safe when many processes do so at once. A database that holds no queue gets `queue_id`.
///
/// # Errors
/// As [`look`], or this database user may not create tables (77).
pub(super) fn bring_up(tx: &Transaction<'_>, queue_id: &str) -> Result<()> {
    tx.query(sql!("set_up_lock"), &[])?;
    // Somebody else may have been quicker; only under the lock is the answer final.
    let version = match look(tx)? {
        Found::Current => return Ok(()),
        Found::Older(version) => version,
        Found::Nothing => {
            if !there(tx)?("has_schema")? {
                tx.batch(sql!("schema"))?;
            }
            0
        }
    };
    for (sql, oldest_writer) in MIGRATIONS.iter().skip(version as usize) {
        tx.batch(sql)?;
        set_meta(tx, "oldest_writer", &oldest_writer.to_string())?;
    }
    if version == 0 {
        set_meta(tx, "queue_id", queue_id)?;
    }
    set_meta(tx, "schema", &NEWEST.to_string())
}

/// All that an administrator runs by hand to set up a database.
pub(super) fn text() -> String {
    let migrations: Vec<&str> = MIGRATIONS.iter().map(|(sql, _)| *sql).collect();
    let facts = include_str!("../../../sql/postgres/migrations/facts.sql");
    let facts = facts.replace(":schema", &NEWEST.to_string()).replace(":oldest_writer", &OLDEST_WRITER.to_string());
    let schema = sql!("schema").trim_end();
    format!("BEGIN;\n\n{schema};\nSET LOCAL search_path = export_queue;\n\n{}\n{facts}\nCOMMIT;", migrations.join("\n"))
}
