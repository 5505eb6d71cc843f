//! A queue that moves from one database to another, whole: rows, numbers, places, times.
//!
//! **Nothing is lost and nothing is there twice, whatever dies midway.** A move has an id, and each of its steps is one
//! transaction of one database. The source is *closed* when no run is under way: from then on triggers refuse each write of
//! whoever has it open, and its schema's number is beyond every program that opens it. Its rows, which cannot change any
//! more, are written to the target in one transaction that closes the target too. Then the source notes that they *left*:
//! before that the move can be taken back, after it it can only be finished. Last the target is opened. A move that was broken
//! off goes on where it was, since each database says how far it is.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use rusqlite::types::{Value as Cell, ValueRef};
use rusqlite::{Connection, OpenFlags, params_from_iter};
use serde_json::{Map, Value};

use super::sqlite::{Sqlite, count};
use super::trouble::explain;
use super::{Store, migrate};
use crate::exit::Refusal;
use crate::fault;

/// The tables that move, each after those that its rows refer to.
pub const TABLES: &[&str] = &["queues", "jobs", "interests", "runs", "deliveries"];

/// Those of them whose rows have numbers that callers may know.
const NUMBERED: &[&str] = &["jobs", "deliveries"];

/// What is added to the number of a closed queue's schema: no program knows so many.
pub(super) const CLOSED: u32 = 1_000_000;

/// How many rows are carried at a time.
const PAGE: usize = 1000;

/// The fact about a database that says how far a move is.
pub(super) const FACT: &str = "move";

/// How far a move is, in one of its two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The source: closed, and still the queue.
    Leaving,
    /// The source: not the queue any more.
    Left,
    /// The target: all rows are there, and it is closed.
    Arriving,
    /// The database is the queue.
    Here,
}

impl Stage {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Leaving, "leaving"), (Self::Left, "left"), (Self::Arriving, "arriving"), (Self::Here, "here")];

    /// The word for it.
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(stage, _)| *stage == self).map_or("", |(_, text)| text)
    }
}

/// What a database says of the last move that it took part in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// How far it is.
    pub stage: Stage,
    /// The move's random id.
    pub id: String,
    /// The other database, as it is shown to people.
    pub other: String,
}

impl Mark {
    /// The same move, further on.
    #[must_use]
    pub fn at(&self, stage: Stage) -> Self {
        Self { stage, ..self.clone() }
    }

    /// Why a closed database is not opened, and the mend.
    pub fn refusal(&self) -> anyhow::Error {
        let other = &self.other;
        match self.stage {
            Stage::Leaving => Refusal::try_later(format!(
                "the queue is moving to {other}; if that was broken off, run `export-queue migrate` again"
            )),
            Stage::Left => Refusal::config(format!("the queue has moved to {other}: change `database`")),
            Stage::Arriving | Stage::Here => Refusal::try_later(format!(
                "the queue is arriving from {other}; if that was broken off, run `export-queue migrate` again"
            )),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.stage.text(), self.id, self.other)
    }
}

impl FromStr for Mark {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.splitn(3, ' ');
        let known = words.next().and_then(|word| Stage::ALL.iter().find(|(_, text)| *text == word));
        let (stage, _) = *known.with_context(|| format!("`{text}` says of no move that this program knows"))?;
        let mut next = || words.next().unwrap_or_default().to_owned();
        Ok(Self { stage, id: next(), other: next() })
    }
}

/// A row of any table, by the names of its columns.
pub type Row = Map<String, Value>;

/// How many rows of each table have moved.
pub type Moved = Vec<(&'static str, u64)>;

/// A database that a queue leaves, or in which it arrives.
pub trait Movable: Store {
    /// What it says of the last move.
    fn mark(&self) -> Result<Option<Mark>>;

    /// Closes it, unless it is closed or runs have not ended: how many those are.
    fn close(&mut self, mark: &Mark) -> Result<u64>;

    /// Goes on from one mark to the next; false where it does not say `from` any more.
    fn go_on(&mut self, from: &Mark, to: &Mark) -> Result<bool>;

    /// Opens it again, as [`Movable::go_on`].
    fn open_again(&mut self, from: &Mark, to: &Mark) -> Result<bool>;

    /// Shows every row of a table, some at a time.
    fn read_out(&self, table: &str, visit: &mut dyn FnMut(&[Row]) -> Result<()>) -> Result<()>;

    /// The last number that was given in a table.
    fn last_number(&self, table: &str) -> Result<i64>;

    /// Refuses what would be lost if the queue `id` arrived here.
    ///
    /// # Errors
    /// It is itself a queue in use (78).
    fn refuse_occupied(&self, id: &str) -> Result<()>;

    /// Takes in all rows of another database, which is closed, and closes itself with them.
    ///
    /// # Errors
    /// It is itself a queue in use (78), or either cannot be used.
    fn take_in(&mut self, from: &dyn Movable, mark: &Mark) -> Result<Moved>;
}

/// What a target does in the transaction in which everything arrives.
pub(super) trait Intake {
    fn clear(&self, table: &str) -> Result<()>;
    fn put(&self, table: &str, rows: &[Row]) -> Result<()>;
    fn set_last_number(&self, table: &str, last: i64) -> Result<()>;
}

/// Whether a queue may arrive in a database: it is vacant, or what the same queue left behind on its way elsewhere, or what a
/// move that was taken back has brought.
///
/// # Errors
/// It may not (78).
pub(super) fn may_arrive(is_same: bool, mark: Option<&Mark>, is_closed: bool, is_vacant: bool) -> Result<()> {
    let is_former = is_same && is_closed && mark.is_some_and(|mark| mark.stage != Stage::Leaving);
    if is_former || (is_vacant && !is_closed) {
        return Ok(());
    }
    Err(Refusal::config("it holds jobs or history of its own: name an empty database"))
}

/// Carries all rows over.
pub(super) fn carry(from: &dyn Movable, to: &dyn Intake) -> Result<Moved> {
    for table in TABLES.iter().rev() {
        to.clear(table)?;
    }
    let mut moved = Moved::new();
    for table in TABLES {
        let mut rows = 0;
        from.read_out(table, &mut |page| {
            rows += page.len() as u64;
            to.put(table, page)?;
            Ok(fault::point("migrate.between_rows")?)
        })?;
        moved.push((table, rows));
    }
    for table in NUMBERED {
        to.set_last_number(table, from.last_number(table)?)?;
    }
    Ok(moved)
}

/// The mark of an open database.
pub(super) fn mark_of(conn: &Connection) -> Result<Option<Mark>> {
    if migrate::schema(conn)?.is_none() {
        return Ok(None);
    }
    migrate::meta(conn, FACT)?.map(|text| text.parse()).transpose()
}

impl Sqlite {
    /// Opens a database for a move: a queue that is closed stays so, and an empty file holds none.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_move(path: &Path) -> Result<Self> {
        let mut store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let mut prepare = || match migrate::schema(&store.conn)? {
            Some(_) if !migrate::is_closed(&store.conn)? => store.prepare(""),
            _ => store.ready(),
        };
        prepare().map_err(|error| explain(path, error))?;
        Ok(store)
    }

    /// Which schema the file holds, closed for a move or not, and how far a move is; `None` where it is empty.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn schema(path: &Path) -> Result<Option<(u32, Option<Mark>)>> {
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        store.read(|conn| {
            let found = migrate::schema(conn)?;
            found.map(|schema| Ok((schema, mark_of(conn)?))).transpose()
        })
    }
}

impl Movable for Sqlite {
    fn mark(&self) -> Result<Option<Mark>> {
        self.read(mark_of)
    }

    fn close(&mut self, mark: &Mark) -> Result<u64> {
        self.write(|tx| {
            if let Some(found) = mark_of(tx)?.filter(|found| found.stage != Stage::Here) {
                return Err(found.refusal());
            }
            let held = count(tx, sql!("moving_held"), &[])?;
            if held == 0 {
                close(tx, mark)?;
            }
            Ok(held)
        })
    }

    fn go_on(&mut self, from: &Mark, to: &Mark) -> Result<bool> {
        self.write(|tx| {
            let is_there = mark_of(tx)?.as_ref() == Some(from);
            if is_there {
                migrate::set_meta(tx, FACT, &to.to_string())?;
            }
            Ok(is_there)
        })
    }

    fn open_again(&mut self, from: &Mark, to: &Mark) -> Result<bool> {
        self.write(|tx| {
            let is_there = mark_of(tx)?.as_ref() == Some(from);
            if is_there {
                open(tx)?;
                migrate::set_meta(tx, FACT, &to.to_string())?;
            }
            Ok(is_there)
        })
    }

    fn read_out(&self, table: &str, visit: &mut dyn FnMut(&[Row]) -> Result<()>) -> Result<()> {
        self.read(|conn| {
            let mut statement = conn.prepare(&of(sql!("moving_rows"), table))?;
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut rows = statement.query([])?;
            let mut page = Vec::with_capacity(PAGE);
            while let Some(row) = rows.next()? {
                let cells = names.iter().map(|name| Ok((name.clone(), portable(row.get_ref(name.as_str())?)?)));
                page.push(cells.collect::<Result<Row>>()?);
                if page.len() == PAGE {
                    visit(&page)?;
                    page.clear();
                }
            }
            if page.is_empty() { Ok(()) } else { visit(&page) }
        })
    }

    fn last_number(&self, table: &str) -> Result<i64> {
        self.read(|conn| Ok(conn.query_row(sql!("moving_last"), &[(":table", table)], |row| row.get(0))?))
    }

    fn refuse_occupied(&self, id: &str) -> Result<()> {
        self.read(|conn| refuse_occupied(conn, id))
    }

    fn take_in(&mut self, from: &dyn Movable, mark: &Mark) -> Result<Moved> {
        let id = from.queue_id()?;
        self.write(|tx| {
            refuse_occupied(tx, &id)?;
            if migrate::is_closed(tx)? {
                open(tx)?;
            } else {
                migrate::bring_up_in(tx, &id)?;
            }
            let moved = carry(from, &Arrival(tx))?;
            migrate::set_meta(tx, "queue_id", &id)?;
            close(tx, mark)?;
            fault::point("migrate.before_arrival")?;
            Ok(moved)
        })
    }
}

fn refuse_occupied(conn: &Connection, id: &str) -> Result<()> {
    if migrate::schema(conn)?.is_none() {
        return Ok(());
    }
    let own_id = migrate::meta(conn, "queue_id")?.unwrap_or_default();
    let is_vacant = count(conn, sql!("moving_is_vacant"), &[])? == 1;
    may_arrive(own_id == id, mark_of(conn)?.as_ref(), migrate::is_closed(conn)?, is_vacant)
}

fn close(conn: &Connection, mark: &Mark) -> Result<()> {
    conn.execute_batch(include_str!("../../sql/sqlite/moving/close.sql"))?;
    migrate::set_meta(conn, FACT, &mark.to_string())?;
    migrate::set_closed(conn, true)
}

fn open(conn: &Connection) -> Result<()> {
    conn.execute_batch(include_str!("../../sql/sqlite/moving/open.sql"))?;
    migrate::set_closed(conn, false)
}

/// A statement about a table.
pub(super) fn of(sql: &str, table: &str) -> String {
    sql.replace("a_table", table)
}

/// A cell as any engine takes it. Text with U+0000 is no text to PostgreSQL.
fn portable(cell: ValueRef<'_>) -> Result<Value> {
    Ok(match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).replace('\0', "\u{fffd}").into(),
        ValueRef::Real(_) | ValueRef::Blob(_) => anyhow::bail!("a cell is neither number nor text"),
    })
}

fn cell(value: Option<&Value>) -> Result<Cell> {
    Ok(match value {
        None | Some(Value::Null) => Cell::Null,
        Some(Value::Number(number)) => Cell::Integer(number.as_i64().context("a number is too large")?),
        Some(Value::String(text)) => Cell::Text(text.clone()),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            anyhow::bail!("a cell is neither number nor text")
        }
    })
}

struct Arrival<'a>(&'a Connection);

impl Intake for Arrival<'_> {
    fn clear(&self, table: &str) -> Result<()> {
        Ok(self.0.execute(&of(sql!("moving_clear"), table), []).map(drop)?)
    }

    fn put(&self, table: &str, rows: &[Row]) -> Result<()> {
        let known = self.0.prepare_cached(&of(sql!("moving_rows"), table))?;
        let columns: Vec<String> = known.column_names().map(str::to_owned).collect();
        let values = vec!["?"; columns.len()].join(", ");
        let sql =
            of(sql!("moving_put"), table).replace("its_columns", &columns.join(", ")).replace("its_values", &values);
        let mut statement = self.0.prepare_cached(&sql)?;
        for row in rows {
            let cells = columns.iter().map(|column| cell(row.get(column))).collect::<Result<Vec<_>>>()?;
            ensure!(statement.execute(params_from_iter(cells))? == 1, "a row of {table} did not arrive");
        }
        Ok(())
    }

    fn set_last_number(&self, table: &str, last: i64) -> Result<()> {
        self.0.execute(sql!("moving_forget_last"), &[(":table", table)])?;
        let params = rusqlite::named_params! {":table": table, ":last": last};
        Ok(self.0.execute(sql!("moving_set_last"), params).map(drop)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for (stage, _) in Stage::ALL {
            let mark = Mark { stage, id: "7f".into(), other: "database exports on db 1".into() };
            assert_eq!(mark.to_string().parse::<Mark>().unwrap(), mark);
        }
        assert!("somewhere 7f x".parse::<Mark>().is_err());
    }

    #[test]
    fn a_queue_arrives_where_nothing_is_lost() {
        let mark = |stage| Mark { stage, id: "7f".into(), other: "elsewhere".into() };
        for stage in [None, Some(Stage::Leaving), Some(Stage::Left), Some(Stage::Arriving), Some(Stage::Here)] {
            for bits in 0..8 {
                let (is_same, is_closed, is_vacant) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
                let expected = match (is_closed, stage) {
                    (false, _) => is_vacant,
                    (true, None | Some(Stage::Leaving)) => false,
                    (true, Some(Stage::Left | Stage::Arriving | Stage::Here)) => is_same,
                };
                let arrives = may_arrive(is_same, stage.map(mark).as_ref(), is_closed, is_vacant).is_ok();
                assert_eq!(arrives, expected, "{stage:?} {is_same} {is_closed} {is_vacant}");
            }
        }
    }
}
