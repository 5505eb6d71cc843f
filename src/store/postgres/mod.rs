//! The queue on PostgreSQL: one database for many machines.
//!
//! **What differs from SQLite.** Many write at once, so each verb locks the rows that it decides upon, and claims step over
//! rows that others hold. No slot lock fences a run of another machine: a *lease* does, by the database's clock. A lease that
//! has ended is never renewed, so that whoever finds it ended may take the run over. Where the number of running jobs is
//! bounded over all nodes, a claim locks the queue's row and counts before it claims: in one statement the count would be
//! older than the lock.

/// The text of a statement of this engine.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../sql/postgres/", $name, ".sql"))
    };
}

mod batch;
mod link;
mod listen;
mod moving;
mod nodes;
mod params;
mod place;
mod request;
mod runs;
mod schema;
mod tls;
mod trouble;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use self::link::{End, Link, Transaction};
use self::params::named;
use self::place::Place;
use self::request::{Crowded, Desk, Turn};
pub use self::schema::NEWEST;
use super::rows::{self, Cells, sure_int, sure_text, sure_time};
use super::{
    ANONYMOUS, Again, Ask, Batch, Cancelled, Claim, Delivery, FailureNote, Filter, Hold, Listeners, Node, Past,
    Patience, Pause, Requested, RetriedAll, Seen, Settled, Store, Tally,
};
use crate::clock::from_millis;
use crate::exit::Refusal;
use crate::fault;
use crate::job::{Ended, Job, Outcome, Run, State};
use crate::rules::HORIZON;

/// No back-off of a delivery reaches so far.
const BACKOFF_HORIZON: Duration = Duration::from_secs(2 * 24 * 3600);

/// A connection to the queue.
#[derive(Debug)]
pub struct Postgres {
    link: RefCell<Link>,
    listeners: Listeners,
}

impl Postgres {
    /// Opens the queue that is set up in the database of a URL; an older schema is brought up to date.
    ///
    /// # Errors
    /// No queue is set up there, or one too new, or the URL or the password is wrong (78); away or busy (75).
    pub fn open(url: &str, patience: Patience) -> Result<Self> {
        Self::connect(url, patience)?.look(None)
    }

    /// Opens the queue and sets it up where there is none, with the id `new_id`.
    ///
    /// # Errors
    /// As [`Self::open`], or the database user may not create tables (77).
    pub fn open_or_create(url: &str, new_id: &str, patience: Patience) -> Result<Self> {
        Self::connect(url, patience)?.look(Some(new_id))
    }

    fn connect(url: &str, patience: Patience) -> Result<Self> {
        Ok(Self { link: RefCell::new(Link::new(Place::of(url)?, patience)?), listeners: Listeners::default() })
    }

    fn look(self, new_id: Option<&str>) -> Result<Self> {
        let found = self.read(schema::look)?;
        match (found, new_id) {
            (schema::Found::Current, _) => {}
            (schema::Found::Nothing, None) => {
                return Err(Refusal::config(
                    "the database holds no queue: it was lost or replaced; recover with `export-queue init --adopt`",
                ));
            }
            (schema::Found::Older(_), id) => self.write(|tx| schema::bring_up(tx, id.unwrap_or_default()))?,
            (schema::Found::Nothing, Some(id)) => self.write(|tx| schema::bring_up(tx, id))?,
        }
        Ok(self)
    }

    /// What may be told of a URL: the database and its host.
    ///
    /// # Errors
    /// It is not to be understood (78).
    pub fn name(url: &str) -> Result<String> {
        Ok(Place::of(url)?.shown)
    }

    /// Calls `wake` for each job that is asked for from now on; where a pooler stands between, perhaps not.
    ///
    /// # Errors
    /// The URL is not to be understood (78), or no thread is to be had.
    pub fn listen(url: &str, wake: Arc<dyn Fn() + Send + Sync>) -> Result<()> {
        listen::listen(Place::of(url)?, wake)
    }

    /// The SQL that sets up an empty database.
    pub fn schema_text() -> String {
        schema::text()
    }

    fn write<T>(&self, mut body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.link.borrow_mut().transact(|tx| Ok(End::Commit(body(tx)?)))
    }

    /// A look: it may be tried again whatever happened to it.
    fn read<T>(&self, mut body: impl FnMut(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.link.borrow_mut().transact(|tx| Ok(End::Rollback(body(tx)?)))
    }

    /// Asks for a job beside others, and alone where the queue is near its bound.
    fn in_turn<T>(&self, mut body: impl FnMut(&Transaction<'_>, &mut Desk) -> Result<End<T>>) -> Result<T> {
        let mut link = self.link.borrow_mut();
        match link.transact(|tx| body(tx, &mut Desk::new(Turn::Shared))) {
            Err(error) if error.is::<Crowded>() => link.transact(|tx| body(tx, &mut Desk::new(Turn::Alone))),
            done => done,
        }
    }

    fn one_job(&self, sql: &'static str, params: &[params::Param<'_>]) -> Result<Option<Job>> {
        self.read(|tx| tx.first(sql, params)?.map(|row| rows::job(&row)).transpose())
    }

    fn jobs(&self, sql: &'static str, params: &[params::Param<'_>]) -> Result<Vec<Job>> {
        self.read(|tx| tx.query(sql, params)?.iter().map(rows::job).collect())
    }

    fn texts(&self, sql: &'static str, params: &[params::Param<'_>], column: &str) -> Result<Vec<String>> {
        self.read(|tx| tx.query(sql, params)?.iter().map(|row| sure_text(row, column)).collect())
    }
}

impl Cells for Row {
    fn int(&self, column: &str) -> Result<Option<i64>> {
        let at = || format!("reading column {column}");
        let kind = self.columns().iter().find(|known| known.name() == column).with_context(at)?.type_();
        match kind.name() {
            "int2" => self.try_get::<_, Option<i16>>(column).map(|number| number.map(i64::from)),
            "int4" => self.try_get::<_, Option<i32>>(column).map(|number| number.map(i64::from)),
            _ => self.try_get(column),
        }
        .with_context(at)
    }

    fn text(&self, column: &str) -> Result<Option<String>> {
        self.try_get(column).with_context(|| format!("reading column {column}"))
    }
}

fn millis(time: DateTime<Utc>) -> i64 {
    time.timestamp_millis()
}

fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn horizon(now: DateTime<Utc>) -> i64 {
    millis(now).saturating_add(span(HORIZON))
}

fn names(formats: &[(String, Duration)]) -> Vec<String> {
    formats.iter().map(|(name, _)| name.clone()).collect()
}

fn count(tx: &Transaction<'_>, sql: &str, params: &[params::Param<'_>]) -> Result<u64> {
    Ok(sure_int(&tx.first(sql, params)?.context("counting")?, "counted")?.unsigned_abs())
}

fn find_by_id(tx: &Transaction<'_>, id: i64) -> Result<Option<Job>> {
    tx.first(sql!("find_by_id"), named! {":id": id})?.map(|row| rows::job(&row)).transpose()
}

fn sure(tx: &Transaction<'_>, id: i64) -> Result<Job> {
    find_by_id(tx, id)?.context("a row that was just written is not there")
}

fn cancel(
    tx: &Transaction<'_>,
    filename: &str,
    client: Option<&str>,
    force: bool,
    now: DateTime<Utc>,
) -> Result<Cancelled> {
    let live =
        request::find_to_change(tx, filename)?.filter(|job| matches!(job.state(), State::Queued | State::Started));
    let Some(job) = live else {
        return Ok(Cancelled::NotLive);
    };
    let client = client.unwrap_or(ANONYMOUS);
    tx.execute(sql!("interest_drop"), named! {":job_id": job.id, ":client": client})?;
    let others = count(tx, sql!("interest_count"), named! {":job_id": job.id, ":client": client})?;
    if others > 0 && !force {
        return Ok(Cancelled::StillWanted(others));
    }
    if tx.execute(sql!("delete_queued"), named! {":id": job.id})? == 1 {
        return Ok(Cancelled::Removed);
    }
    tx.execute(sql!("mark_cancelled"), named! {":id": job.id, ":now": millis(now)})?;
    Ok(Cancelled::Marked)
}

fn tally(row: &Row) -> Result<Tally> {
    let number = |column: &str| sure_int(row, column).map(i64::unsigned_abs);
    Ok(Tally {
        queue: sure_text(row, "queue")?,
        queued: number("queued")?,
        due: number("due")?,
        started: number("started")?,
        failed: number("failed")?,
        oldest: row.int("oldest")?.map(from_millis),
    })
}

impl Store for Postgres {
    fn queue_id(&self) -> Result<String> {
        self.read(|tx| schema::meta(tx, "queue_id"))
    }

    fn has_cache(&self) -> Result<bool> {
        self.read(schema::has_cache)
    }

    fn note_cache(&mut self) -> Result<()> {
        self.write(schema::note_cache)
    }

    fn request(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested> {
        self.in_turn(|tx, desk| {
            let requested = request::request(tx, ask, desk, now)?;
            tx.query(sql!("poke"), &[])?;
            fault::point("request.before_commit")?;
            Ok(End::Commit(requested))
        })
    }

    fn request_all(&mut self, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch> {
        self.link.borrow_mut().transact(|tx| {
            let batch = batch::request_all(tx, asks, now)?;
            tx.query(sql!("poke"), &[])?;
            fault::point("request.before_commit")?;
            Ok(match batch {
                Batch::Stored { .. } => End::Commit(batch),
                Batch::Refused { .. } => End::Rollback(batch),
            })
        })
    }

    fn rehearse(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested> {
        self.in_turn(|tx, desk| Ok(End::Rollback(request::request(tx, ask, desk, now)?)))
    }

    fn find(&self, filename: &str) -> Result<Option<Job>> {
        self.one_job(sql!("find_by_filename"), named! {":filename": filename})
    }

    fn find_by_id(&self, id: i64) -> Result<Option<Job>> {
        self.read(|tx| find_by_id(tx, id))
    }

    fn find_by_token(&self, token: &str) -> Result<Option<Job>> {
        self.one_job(sql!("find_by_token"), named! {":token": token})
    }

    fn list(&self, filter: &Filter) -> Result<Vec<Job>> {
        let (state, limit) = (filter.state.map(State::number), filter.limit.map(i64::from));
        let params = named! {":state": state, ":queue": filter.queue, ":format": filter.format, ":limit": limit};
        self.jobs(sql!("list"), params)
    }

    fn started(&self) -> Result<Vec<Job>> {
        self.jobs(sql!("started"), &[])
    }

    fn started_on(&self, node: &str) -> Result<Vec<Job>> {
        self.jobs(sql!("started_on"), named! {":node": node})
    }

    fn tally(&self, now: DateTime<Utc>) -> Result<Vec<Tally>> {
        self.read(|tx| {
            let rows = tx.query(sql!("tally"), named! {":now": millis(now), ":horizon": horizon(now)})?;
            rows.iter().map(tally).collect()
        })
    }

    fn count_started(&self, queue: &str) -> Result<u32> {
        let started = self.read(|tx| count(tx, sql!("count_started"), named! {":queue": queue}))?;
        Ok(u32::try_from(started).unwrap_or(u32::MAX))
    }

    fn ahead(&self, job: &Job) -> Result<u32> {
        let params = named! {":queue": job.queue, ":rank": job.rank, ":id": job.id};
        Ok(u32::try_from(self.read(|tx| count(tx, sql!("ahead"), params))?).unwrap_or(u32::MAX))
    }

    fn formats_ahead(&self, job: &Job) -> Result<Vec<String>> {
        self.texts(sql!("formats_ahead"), named! {":queue": job.queue, ":rank": job.rank, ":id": job.id}, "format")
    }

    fn pause_of(&self, queue: &str) -> Result<Option<Pause>> {
        let pause = |row: Row| Ok(Pause { since: sure_time(&row, "paused_at")?, message: row.text("message")? });
        self.read(|tx| tx.first(sql!("pause_of"), named! {":queue": queue})?.map(pause).transpose())
    }

    fn pause(&mut self, queue: &str, message: Option<&str>, now: DateTime<Utc>) -> Result<()> {
        self.write(|tx| {
            tx.execute(sql!("pause"), named! {":queue": queue, ":message": message, ":now": millis(now)}).map(drop)
        })
    }

    fn resume(&mut self, queue: &str) -> Result<bool> {
        self.write(|tx| Ok(tx.execute(sql!("resume"), named! {":queue": queue})? == 1))
    }

    fn paused(&self) -> Result<Vec<String>> {
        self.texts(sql!("paused"), &[], "name")
    }

    fn due(&self, queue: &str, formats: &[(String, Duration)], now: DateTime<Utc>, limit: u32) -> Result<u32> {
        let (formats, now, horizon, limit) = (names(formats), millis(now), horizon(now), i64::from(limit));
        let params = named! {":queue": queue, ":formats": formats, ":now": now, ":horizon": horizon, ":limit": limit};
        Ok(u32::try_from(self.read(|tx| count(tx, sql!("due"), params))?).unwrap_or(u32::MAX))
    }

    fn due_formats(&self, queue: &str) -> Result<Vec<String>> {
        self.texts(sql!("due_formats"), named! {":queue": queue}, "format")
    }

    fn claim(&mut self, wish: &Claim, now: DateTime<Utc>) -> Result<Option<Job>> {
        self.write(|tx| runs::claim(tx, wish, &self.listeners, now))
    }

    fn renew(&mut self, token: &str, lease: Duration) -> Result<Hold> {
        self.write(|tx| {
            let row = tx.first(sql!("renew"), named! {":token": token, ":lease": span(lease)})?;
            let Some(row) = row else { return Ok(Hold::Lost) };
            Ok(match (State::from_number(sure_int(&row, "state")?), row.int("cancel_at")?) {
                (Some(State::Started), None) => Hold::Mine,
                (Some(State::Started), Some(_)) => Hold::Cancelled,
                _ => Hold::Lost,
            })
        })
    }

    fn lost(&self, node: &str, after: i64, limit: u32) -> Result<Vec<Job>> {
        self.jobs(sql!("lost"), named! {":node": node, ":after": after, ":limit": i64::from(limit)})
    }

    fn time(&self) -> Result<Option<DateTime<Utc>>> {
        self.read(|tx| {
            let row = tx.first(sql!("time"), &[])?.context("asking for the time")?;
            Ok(Some(sure_time(&row, "now")?))
        })
    }

    fn heartbeat(&mut self, node: &Node) -> Result<()> {
        self.write(|tx| nodes::heartbeat(tx, node))
    }

    fn nodes(&self) -> Result<Vec<Seen>> {
        self.read(nodes::all)
    }

    fn progress(&mut self, token: &str, progress: &str) -> Result<()> {
        self.write(|tx| tx.execute(sql!("progress"), named! {":token": token, ":progress": progress}).map(drop))
    }

    fn finish(&mut self, run: &Run, node: &str) -> Result<Settled> {
        self.write(|tx| {
            let settled = runs::finish(tx, run, node, &self.listeners)?;
            fault::point("finish.before_commit")?;
            Ok(settled)
        })
    }

    fn finish_and_claim(&mut self, run: &Run, wish: &Claim, now: DateTime<Utc>) -> Result<(Settled, Option<Job>)> {
        self.write(|tx| {
            let settled = runs::finish(tx, run, &wish.node, &self.listeners)?;
            let done = (settled, runs::claim(tx, wish, &self.listeners, now)?);
            fault::point("finish.before_commit")?;
            Ok(done)
        })
    }

    fn fail(&mut self, run: &Run, node: &str, note: &FailureNote<'_>) -> Result<bool> {
        self.write(|tx| {
            runs::deliver(tx, run, &self.listeners.failed)?;
            let changed = tx.execute(
                sql!("fail"),
                named! {
                    ":token": run.token.as_str(), ":state": note.reason.state().number(),
                    ":reason": note.reason.text(), ":detail": note.detail, ":now": millis(run.finished_at),
                    ":keep_token": note.keeps_token,
                },
            )?;
            if changed == 1 {
                runs::record(tx, run, node)?;
            }
            fault::point("finish.before_commit")?;
            Ok(changed == 1)
        })
    }

    fn requeue(&mut self, token: &str, again: Again, run: Option<(&Run, &str)>) -> Result<bool> {
        self.write(|tx| {
            let mine = runs::put_back(tx, token, again)?;
            if let (true, Some((run, node))) = (mine, run) {
                runs::record(tx, run, node)?;
            }
            Ok(mine)
        })
    }

    fn let_go(&mut self, token: &str) -> Result<bool> {
        self.write(|tx| Ok(tx.execute(sql!("let_go"), named! {":token": token})? == 1))
    }

    fn forget(&mut self, id: i64, published_at: DateTime<Utc>) -> Result<bool> {
        self.write(|tx| Ok(tx.execute(sql!("forget"), named! {":id": id, ":published_at": millis(published_at)})? == 1))
    }

    fn fulfilled(&self, since: DateTime<Utc>) -> Result<Vec<(i64, String)>> {
        self.read(|tx| {
            let rows = tx.query(sql!("fulfilled"), named! {":since": millis(since)})?;
            rows.iter().map(|row| Ok((sure_int(row, "id")?, sure_text(row, "filename")?))).collect()
        })
    }

    fn cancel(&mut self, filename: &str, client: Option<&str>, force: bool, now: DateTime<Utc>) -> Result<Cancelled> {
        self.write(|tx| cancel(tx, filename, client, force, now))
    }

    fn dismiss(&mut self, filename: &str) -> Result<bool> {
        self.write(|tx| {
            let Some(job) = request::find_to_change(tx, filename)? else {
                return Ok(false);
            };
            Ok(tx.execute(sql!("dismiss"), named! {":id": job.id})? == 1)
        })
    }

    fn retry_failed(&mut self, now: DateTime<Utc>) -> Result<RetriedAll> {
        self.write(|tx| {
            let queued = tx.execute(sql!("retry_failed"), named! {":now": millis(now)})?;
            Ok(RetriedAll { queued, skipped: count(tx, sql!("count_undead"), &[])? })
        })
    }

    fn purge(&mut self, state: State, before: DateTime<Utc>, dry_run: bool) -> Result<u64> {
        self.link.borrow_mut().transact(|tx| {
            let purged = tx.execute(sql!("purge"), named! {":state": state.number(), ":before": millis(before)})?;
            Ok(if dry_run { End::Rollback(purged) } else { End::Commit(purged) })
        })
    }

    fn expire_failed(&mut self, before: DateTime<Utc>, max: u64, now: DateTime<Utc>) -> Result<u64> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        self.write(|tx| {
            let params = named! {":before": millis(before), ":max": max, ":horizon": horizon(now)};
            tx.execute(sql!("expire_failed"), params)
        })
    }

    fn expire_waits(&mut self, now: DateTime<Utc>) -> Result<u64> {
        self.write(|tx| runs::expire_waits(tx, &self.listeners, now))
    }

    fn needed_bases(&self) -> Result<Vec<(String, DateTime<Utc>)>> {
        self.read(|tx| {
            let rows = tx.query(sql!("needed_bases"), &[])?;
            rows.iter().map(|row| Ok((sure_text(row, "base_filename")?, sure_time(row, "since")?))).collect()
        })
    }

    fn due_files(&self, before: DateTime<Utc>, now: DateTime<Utc>, (skip, limit): (u32, u32)) -> Result<Vec<String>> {
        let params = named! {
            ":before": millis(before), ":horizon": millis(now) + 60_000, ":skip": i64::from(skip),
            ":limit": i64::from(limit),
        };
        self.texts(sql!("due_files"), params, "filename")
    }

    fn present_bytes(&self) -> Result<u64> {
        self.read(|tx| count(tx, sql!("present_bytes"), &[]))
    }

    fn accessed(&mut self, filename: &str, at: DateTime<Utc>, known: DateTime<Utc>) -> Result<()> {
        let params = named! {":filename": filename, ":at": millis(at), ":before": millis(known)};
        self.write(|tx| tx.execute(sql!("accessed"), params).map(drop))
    }

    fn accesses(&self, since: DateTime<Utc>) -> Result<Vec<(String, DateTime<Utc>)>> {
        self.read(|tx| {
            let rows = tx.query(sql!("accesses"), named! {":since": millis(since)})?;
            rows.iter().map(|row| Ok((sure_text(row, "filename")?, sure_time(row, "accessed_at")?))).collect()
        })
    }

    fn next_to_check(&self, formats: &[String], before: DateTime<Utc>) -> Result<Option<Run>> {
        let params = named! {
            ":formats": formats.to_vec(), ":before": millis(before), ":horizon": millis(before) + 120_000,
        };
        self.read(|tx| tx.first(sql!("next_to_check"), params)?.map(|row| rows::run(&row)).transpose())
    }

    fn checked(&mut self, token: &str, now: DateTime<Utc>) -> Result<()> {
        self.write(|tx| tx.execute(sql!("checked"), named! {":token": token, ":now": millis(now)}).map(drop))
    }

    fn tell(&mut self, listeners: Listeners) {
        self.listeners = listeners;
    }

    fn next_delivery(&self, listeners: &[String], now: DateTime<Utc>) -> Result<Option<Delivery>> {
        let params = named! {
            ":listeners": listeners.to_vec(), ":now": millis(now), ":horizon": millis(now) + span(BACKOFF_HORIZON),
        };
        self.read(|tx| tx.first(sql!("next_delivery"), params)?.map(|row| rows::delivery(&row)).transpose())
    }

    fn take_delivery(&mut self, listeners: &[String], now: DateTime<Utc>, hold: Duration) -> Result<Option<Delivery>> {
        let params = named! {
            ":listeners": listeners.to_vec(), ":now": millis(now), ":horizon": millis(now) + span(BACKOFF_HORIZON),
            ":until": millis(now) + span(hold),
        };
        self.write(|tx| tx.first(sql!("take_delivery"), params)?.map(|row| rows::delivery(&row)).transpose())
    }

    fn leave_delivery(&mut self, id: i64, now: DateTime<Utc>) -> Result<()> {
        self.write(|tx| tx.execute(sql!("leave_delivery"), named! {":id": id, ":now": millis(now)}).map(drop))
    }

    fn deliveries(&self) -> Result<Vec<Delivery>> {
        self.read(|tx| tx.query(sql!("deliveries"), &[])?.iter().map(rows::delivery).collect())
    }

    fn delivered(&mut self, id: i64) -> Result<()> {
        self.write(|tx| tx.execute(sql!("delivered"), named! {":id": id}).map(drop))
    }

    fn undelivered(&mut self, id: i64, error: &str, again: Option<DateTime<Utc>>) -> Result<()> {
        let params = named! {":id": id, ":error": error, ":due_at": again.map(millis)};
        self.write(|tx| tx.execute(sql!("undelivered"), params).map(drop))
    }

    fn retry_delivery(&mut self, id: i64, now: DateTime<Utc>) -> Result<bool> {
        self.write(|tx| Ok(tx.execute(sql!("retry_delivery"), named! {":id": id, ":now": millis(now)})? == 1))
    }

    fn forget_deliveries(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64> {
        let params = named! {":before": millis(before), ":max": i64::try_from(max).unwrap_or(i64::MAX)};
        self.write(|tx| tx.execute(sql!("forget_deliveries"), params))
    }

    fn swept(&mut self, filenames: &[String]) -> Result<()> {
        if filenames.is_empty() {
            return Ok(());
        }
        self.write(|tx| tx.execute(sql!("swept"), named! {":filenames": filenames.to_vec()}).map(drop))
    }

    fn still_there(&mut self, filename: &str, published_at: DateTime<Utc>) -> Result<()> {
        self.write(|tx| {
            let params = named! {":filename": filename, ":published_at": millis(published_at)};
            tx.execute(sql!("still_there"), params).map(drop)
        })
    }

    fn runs(&self, past: &Past) -> Result<Vec<Run>> {
        let (since, outcome) = (past.since.map_or(i64::MIN, millis), past.outcome.map(Outcome::text));
        let limit = past.limit.map(i64::from);
        let params = named! {
            ":filename": past.filename, ":format": past.format, ":lang": past.lang, ":client": past.client,
            ":outcome": outcome, ":since": since, ":limit": limit,
        };
        let sql = if past.filename.is_some() { sql!("runs_of") } else { sql!("runs") };
        self.read(|tx| tx.query(sql, params)?.iter().map(rows::run).collect())
    }

    fn meta_of_file(&self, filename: &str) -> Result<Option<String>> {
        self.read(|tx| match tx.first(sql!("meta_of_file"), named! {":filename": filename})? {
            Some(row) => row.text("meta"),
            None => Ok(None),
        })
    }

    fn ended(&self, since: DateTime<Utc>, visit: &mut dyn FnMut(Ended)) -> Result<()> {
        let mut after = (millis(since), String::new());
        loop {
            let page = self.read(|tx| tx.query(sql!("ended"), named! {":since": after.0, ":after": after.1}))?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = (sure_int(last, "finished_at")?, sure_text(last, "token")?);
            for row in &page {
                visit(rows::ended(row)?);
            }
        }
    }

    fn recent_durations(&self, format: &str, limit: u32) -> Result<Vec<Duration>> {
        self.read(|tx| {
            let rows = tx.query(sql!("recent_durations"), named! {":format": format, ":limit": i64::from(limit)})?;
            // A clock that was set back during a run makes it one that took no time.
            let took = |row: &Row| Ok(Duration::from_millis(u64::try_from(sure_int(row, "took")?).unwrap_or(0)));
            rows.iter().map(took).collect()
        })
    }

    fn prune_history(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        self.write(|tx| {
            let params = named! {":before": millis(before), ":max": max, ":limit": 10_000_i64};
            tx.execute(sql!("prune_history"), params)
        })
    }

    fn tokens(&self) -> Result<Vec<String>> {
        self.texts(sql!("tokens"), &[], "token")
    }
}
