//! A queue that moves to or from PostgreSQL.

use std::cell::Cell;

use anyhow::{Result, ensure};

use super::link::{End, Transaction};
use super::params::named;
use super::rows::sure_text;
use super::{Postgres, count, schema};
use crate::fault;
use crate::store::Patience;
use crate::store::moving::{self, FACT, Intake, Mark, Movable, Moved, Row, Stage, of};

impl Postgres {
    /// Opens a database for a move: a queue that is closed stays so, and an empty database stays empty.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_move(url: &str) -> Result<Self> {
        let opened = Self::connect(url, Patience::MOVER)?;
        let is_open_queue = opened.read(|tx| Ok(schema::version(tx)?.is_some() && !schema::is_closed(tx)?))?;
        if is_open_queue { opened.look(None) } else { Ok(opened) }
    }

    /// Which schema the database holds, closed for a move or not; `None` where it holds no queue.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn schema(url: &str) -> Result<Option<(u32, Option<Mark>)>> {
        Self::connect(url, Patience::ASKER)?
            .read(|tx| schema::version(tx)?.map(|version| Ok((version, schema::mark(tx)?))).transpose())
    }

    fn go_on_with(&self, from: &Mark, to: &Mark, opens: bool) -> Result<bool> {
        self.write(|tx| {
            tx.query(sql!("set_up_lock"), &[])?;
            let is_there = schema::mark(tx)?.as_ref() == Some(from);
            if is_there && opens {
                open(tx)?;
            }
            if is_there {
                schema::set_meta(tx, FACT, &to.to_string())?;
            }
            Ok(is_there)
        })
    }
}

fn lock(tx: &Transaction<'_>) -> Result<()> {
    tx.query(sql!("set_up_lock"), &[])?;
    tx.batch(include_str!("../../../sql/postgres/moving/lock.sql"))
}

fn refuse_occupied(tx: &Transaction<'_>, id: &str) -> Result<()> {
    if schema::version(tx)?.is_none() {
        return Ok(());
    }
    let is_same = schema::meta(tx, "queue_id")? == id;
    let is_vacant = count(tx, sql!("moving_is_vacant"), &[])? == 1;
    moving::may_arrive(is_same, schema::mark(tx)?.as_ref(), schema::is_closed(tx)?, is_vacant)
}

fn close(tx: &Transaction<'_>, mark: &Mark) -> Result<()> {
    tx.batch(include_str!("../../../sql/postgres/moving/close.sql"))?;
    schema::set_meta(tx, FACT, &mark.to_string())?;
    schema::set_closed(tx, true)
}

fn open(tx: &Transaction<'_>) -> Result<()> {
    tx.batch(include_str!("../../../sql/postgres/moving/open.sql"))?;
    schema::set_closed(tx, false)
}

impl Movable for Postgres {
    fn mark(&self) -> Result<Option<Mark>> {
        self.read(|tx| if schema::version(tx)?.is_some() { schema::mark(tx) } else { Ok(None) })
    }

    fn close(&mut self, mark: &Mark) -> Result<u64> {
        self.write(|tx| {
            lock(tx)?;
            match schema::mark(tx)? {
                // The answer to the first try was lost.
                Some(found) if found == *mark => return Ok(0),
                Some(found) if found.stage != Stage::Here => return Err(found.refusal()),
                _ => {}
            }
            let held = count(tx, sql!("moving_held"), &[])?;
            if held == 0 {
                close(tx, mark)?;
            }
            Ok(held)
        })
    }

    fn go_on(&mut self, from: &Mark, to: &Mark) -> Result<bool> {
        self.go_on_with(from, to, false)
    }

    fn open_again(&mut self, from: &Mark, to: &Mark) -> Result<bool> {
        self.go_on_with(from, to, true)
    }

    fn read_out(&self, table: &str, visit: &mut dyn FnMut(&[Row]) -> Result<()>) -> Result<()> {
        let is_begun = Cell::new(false);
        self.read(|tx| {
            // What was visited cannot be taken back.
            ensure!(!is_begun.replace(true), "the connection was lost on the way; run `export-queue migrate` again");
            tx.batch(&of(sql!("moving_rows"), table))?;
            loop {
                let rows = tx.query(sql!("moving_page"), &[])?;
                if rows.is_empty() {
                    return tx.batch(sql!("moving_read"));
                }
                let page = rows.iter().map(|row| Ok(serde_json::from_str(&sure_text(row, "whole")?)?));
                visit(&page.collect::<Result<Vec<Row>>>()?)?;
            }
        })
    }

    fn last_number(&self, table: &str) -> Result<i64> {
        self.read(|tx| Ok(count(tx, &of(sql!("moving_last"), table), &[])?.cast_signed()))
    }

    fn refuse_occupied(&self, id: &str) -> Result<()> {
        self.read(|tx| refuse_occupied(tx, id))
    }

    fn take_in(&mut self, from: &dyn Movable, mark: &Mark) -> Result<Moved> {
        let id = from.queue_id()?;
        self.link.borrow_mut().transact(|tx| {
            tx.query(sql!("set_up_lock"), &[])?;
            refuse_occupied(tx, &id)?;
            if schema::version(tx)?.is_some() && schema::is_closed(tx)? {
                open(tx)?;
                lock(tx)?;
            } else {
                schema::bring_up(tx, &id)?;
                lock(tx)?;
                // What was asked for until now is seen now.
                refuse_occupied(tx, &id)?;
            }
            let moved = moving::carry(from, &Arrival(tx))?;
            schema::set_meta(tx, "queue_id", &id)?;
            schema::note_cache(tx)?;
            close(tx, mark)?;
            fault::point("migrate.before_arrival")?;
            Ok(End::Commit(moved))
        })
    }
}

struct Arrival<'a, 'b>(&'a Transaction<'b>);

impl Intake for Arrival<'_, '_> {
    fn clear(&self, table: &str) -> Result<()> {
        self.0.execute(&of(sql!("moving_clear"), table), &[]).map(drop)
    }

    fn put(&self, table: &str, rows: &[Row]) -> Result<()> {
        let put = of(sql!("moving_put"), table);
        let arrived = self.0.execute(&put, named! {":rows": serde_json::to_string(rows)?})?;
        ensure!(arrived == rows.len() as u64, "{arrived} of {} rows of {table} have arrived", rows.len());
        Ok(())
    }

    fn set_last_number(&self, table: &str, last: i64) -> Result<()> {
        self.0.query(&of(sql!("moving_set_last"), table), named! {":last": last}).map(drop)
    }
}
