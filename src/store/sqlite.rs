//! The queue on SQLite: one file in the state directory, WAL, each commit synced before its caller goes on.
//!
//! Every write is one `BEGIN IMMEDIATE` transaction: it takes the write lock first and waits for it, while a transaction
//! that reads first and then wants to write is refused at once when somebody else was quicker. A power cut loses nothing
//! that was answered. The `-wal` and `-shm` files stay when the last process closes, so that a front end that may only
//! read finds them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, ToSql, Transaction, TransactionBehavior, named_params,
};

use super::trouble::{explain, lost};
use super::turn::{self, Log};
use super::{
    ANONYMOUS, Again, Ask, Batch, Cancelled, Claim, Delivery, FailureNote, Filter, Listeners, Past, Pause, Requested,
    RetriedAll, Room, Settled, Store, Tally, deliveries, migrate, request, rows, runs,
};
use crate::clock::from_millis;
use crate::fault;
use crate::job::{Ended, Job, Outcome, Phase, Run, State};
use crate::rules::HORIZON;

/// How many prepared statements a connection keeps: more than a worker uses.
const STATEMENTS: usize = 64;

/// A connection to the queue.
#[derive(Debug)]
pub struct Sqlite {
    pub(super) conn: Connection,
    path: PathBuf,
    listeners: Listeners,
    log: Log,
}

impl Sqlite {
    /// Opens the queue for writing; the file must be there. An older schema is brought up to date, an empty file becomes a
    /// queue with the id `new_id`.
    ///
    /// # Errors
    /// Not a usable database or too new (78), not permitted (77), busy (75).
    pub fn open(path: &Path, new_id: &str) -> Result<Self> {
        let mut store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        store.prepare(new_id).map_err(|error| explain(path, error))?;
        Ok(store)
    }

    /// Opens the queue for reading; the file must be there and hold a queue of this version.
    ///
    /// # Errors
    /// As [`Self::open`]; an older or empty one is to be opened for writing first (78).
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        match migrate::look(&store.conn).map_err(|error| explain(path, error))? {
            migrate::Found::Current => Ok(store),
            // Whoever may write brings it up to date; others are told who can.
            migrate::Found::Older => Self::open(path, ""),
            migrate::Found::Empty => Err(lost(path)),
        }
    }

    pub(super) fn connect(path: &Path, access: OpenFlags) -> Result<Self> {
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connect = || -> Result<Connection> {
            // Links on the way to the state directory are the operator's; a link in the database's place is nobody's.
            let dir = path.parent().map(std::fs::canonicalize).transpose()?.unwrap_or_default();
            let mut conn = Connection::open_with_flags(dir.join(path.file_name().unwrap_or_default()), flags)?;
            turn::wait(&mut conn)?;
            conn.set_prepared_statement_cache_capacity(STATEMENTS);
            // A plan that looks at bound values is made anew whenever they change; ours is good for all of them.
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Ok(conn)
        };
        let conn = connect().map_err(|error| explain(path, error))?;
        Ok(Self { conn, path: path.to_owned(), listeners: Listeners::default(), log: Log::of(path) })
    }

    pub(super) fn prepare(&mut self, new_id: &str) -> Result<()> {
        self.ready()?;
        migrate::bring_up(&mut self.conn, new_id)?;
        if self.conn.total_changes() > 0 { self.log.sync() } else { Ok(()) }
    }

    pub(super) fn ready(&self) -> Result<()> {
        let mode: String = self.conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        if mode != "wal" {
            if migrate::schema(&self.conn)?.is_some() {
                tracing::info!("switching {} to WAL", self.path.display());
            }
            self.conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        }
        self.conn.execute_batch("PRAGMA foreign_keys = ON")?;
        turn::keep_log(&self.conn)
    }

    /// Writes the id that binds the database, anew.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn adopt(&mut self, queue_id: &str) -> Result<()> {
        self.write(|tx| migrate::set_meta(tx, "queue_id", queue_id))
    }

    pub(super) fn write<T>(&mut self, body: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.transact(|tx| Ok((body(tx)?, true)))
    }

    /// A write that says itself whether it shall stay.
    fn transact<T>(&mut self, body: impl FnOnce(&Transaction<'_>) -> Result<(T, bool)>) -> Result<T> {
        let Self { conn, path, log, .. } = self;
        let attempt = || -> Result<T> {
            log.check()?;
            let before = conn.total_changes();
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let (value, stays) = body(&tx)?;
            let ended = if stays { tx.commit() } else { tx.rollback() };
            ended?;
            if conn.total_changes() > before {
                log.sync()?;
            }
            Ok(value)
        };
        attempt().map_err(|error| explain(path, error))
    }

    pub(super) fn read<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.log.check().and_then(|()| body(&self.conn)).map_err(|error| explain(&self.path, error))
    }
}

pub(super) fn millis(time: DateTime<Utc>) -> i64 {
    time.timestamp_millis()
}

pub(super) fn horizon(now: DateTime<Utc>) -> i64 {
    millis(now).saturating_add(HORIZON.as_millis() as i64)
}

/// The formats and their time limits as the statements take them.
pub(super) fn formats_json(formats: &[(String, Duration)]) -> String {
    let map: BTreeMap<_, _> = formats.iter().map(|(name, limit)| (name, limit.as_millis() as u64)).collect();
    // A map of strings to numbers always has a JSON form.
    serde_json::to_string(&map).unwrap_or_default()
}

/// A list of texts as the statements take it.
pub(super) fn texts_json(texts: &[String]) -> String {
    // A list of strings always has a JSON form.
    serde_json::to_string(texts).unwrap_or_default()
}

pub(super) fn one_job(conn: &Connection, sql: &str, params: &[(&str, &dyn ToSql)]) -> Result<Option<Job>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(rows::job).transpose()
}

fn jobs(conn: &Connection, sql: &str, params: &[(&str, &dyn ToSql)]) -> Result<Vec<Job>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push(rows::job(row)?);
    }
    Ok(jobs)
}

/// The one column of each row.
fn texts(conn: &Connection, sql: &str, params: &[(&str, &dyn ToSql)]) -> Result<Vec<String>> {
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map(params, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn find(conn: &Connection, filename: &str) -> Result<Option<Job>> {
    one_job(conn, sql!("find_by_filename"), named_params! {":filename": filename})
}

fn find_by_id(conn: &Connection, id: i64) -> Result<Option<Job>> {
    one_job(conn, sql!("find_by_id"), named_params! {":id": id})
}

/// Carries out a statement; how many rows it changed.
pub(super) fn change(conn: &Connection, sql: &str, params: &[(&str, &dyn ToSql)]) -> Result<usize> {
    Ok(conn.prepare_cached(sql)?.execute(params)?)
}

pub(super) fn sure(conn: &Connection, id: i64) -> Result<Job> {
    find_by_id(conn, id)?.context("a row that was just written is not there")
}

pub(super) fn count(conn: &Connection, sql: &str, params: &[(&str, &dyn ToSql)]) -> Result<u64> {
    Ok(conn.prepare_cached(sql)?.query_row(params, |row| row.get::<_, i64>(0))?.unsigned_abs())
}

impl Store for Sqlite {
    fn queue_id(&self) -> Result<String> {
        self.read(|conn| Ok(conn.query_row(sql!("meta_get"), &[(":name", "queue_id")], |row| row.get(0))?))
    }

    fn is_being_written(&mut self) -> Result<bool> {
        let attempt = |conn: &mut Connection| conn.transaction_with_behavior(TransactionBehavior::Immediate).map(drop);
        match turn::or_never(&mut self.conn, attempt).flatten() {
            Ok(()) => Ok(false),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(true),
            Err(error) => Err(explain(&self.path, error.into())),
        }
    }

    fn request(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested> {
        // Who joins rests on the row of somebody else, who may not have synced it yet; but he writes, and his sync is one of all.
        self.write(|tx| {
            let requested = request::request(tx, ask, &mut Room::default(), now)?;
            fault::point("request.before_commit")?;
            Ok(requested)
        })
    }

    fn request_all(&mut self, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch> {
        self.transact(|tx| {
            let batch = request::request_all(tx, asks, now)?;
            fault::point("request.before_commit")?;
            let stays = matches!(batch, Batch::Stored { .. });
            Ok((batch, stays))
        })
    }

    fn rehearse(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested> {
        self.transact(|tx| Ok((request::request(tx, ask, &mut Room::default(), now)?, false)))
    }

    fn find(&self, filename: &str) -> Result<Option<Job>> {
        self.read(|conn| find(conn, filename))
    }

    fn find_by_id(&self, id: i64) -> Result<Option<Job>> {
        self.read(|conn| find_by_id(conn, id))
    }

    fn find_by_token(&self, token: &str) -> Result<Option<Job>> {
        self.read(|conn| one_job(conn, sql!("find_by_token"), named_params! {":token": token}))
    }

    fn list(&self, filter: &Filter) -> Result<Vec<Job>> {
        let params = named_params! {
            ":state": filter.state.map(State::number), ":queue": filter.queue, ":format": filter.format,
            ":limit": filter.limit.map_or(-1, i64::from),
        };
        self.read(|conn| jobs(conn, sql!("list"), params))
    }

    fn started(&self) -> Result<Vec<Job>> {
        self.read(|conn| jobs(conn, sql!("started"), &[]))
    }

    fn tally(&self, now: DateTime<Utc>) -> Result<Vec<Tally>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(sql!("tally"))?;
            let rows = statement.query_map(named_params! {":now": millis(now), ":horizon": horizon(now)}, |row| {
                let number = |column: &str| row.get::<_, i64>(column).map(i64::unsigned_abs);
                Ok(Tally {
                    queue: row.get("queue")?,
                    queued: number("queued")?,
                    due: number("due")?,
                    started: number("started")?,
                    failed: number("failed")?,
                    oldest: row.get::<_, Option<i64>>("oldest")?.map(from_millis),
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn count_started(&self, queue: &str) -> Result<u32> {
        self.read(|conn| {
            let started = count(conn, sql!("count_started"), named_params! {":queue": queue})?;
            Ok(u32::try_from(started).unwrap_or(u32::MAX))
        })
    }

    fn ahead(&self, job: &Job) -> Result<u32> {
        self.read(|conn| {
            let params = named_params! {":queue": job.queue, ":rank": job.rank, ":id": job.id};
            Ok(u32::try_from(count(conn, sql!("ahead"), params)?).unwrap_or(u32::MAX))
        })
    }

    fn formats_ahead(&self, job: &Job) -> Result<Vec<String>> {
        let params = named_params! {":queue": job.queue, ":rank": job.rank, ":id": job.id};
        self.read(|conn| texts(conn, sql!("formats_ahead"), params))
    }

    fn pause_of(&self, queue: &str) -> Result<Option<Pause>> {
        self.read(|conn| {
            let pause = conn.prepare_cached(sql!("pause_of"))?.query_row(named_params! {":queue": queue}, |row| {
                Ok(Pause { since: from_millis(row.get("paused_at")?), message: row.get("message")? })
            });
            Ok(pause.optional()?)
        })
    }

    fn pause(&mut self, queue: &str, message: Option<&str>, now: DateTime<Utc>) -> Result<()> {
        self.write(|tx| {
            let params = named_params! {":queue": queue, ":message": message, ":now": millis(now)};
            change(tx, sql!("pause"), params)?;
            Ok(())
        })
    }

    fn resume(&mut self, queue: &str) -> Result<bool> {
        self.write(|tx| Ok(change(tx, sql!("resume"), named_params! {":queue": queue})? == 1))
    }

    fn paused(&self) -> Result<Vec<String>> {
        self.read(|conn| texts(conn, sql!("paused"), &[]))
    }

    fn due(&self, queue: &str, formats: &[(String, Duration)], now: DateTime<Utc>, limit: u32) -> Result<u32> {
        self.read(|conn| {
            let params = named_params! {
                ":queue": queue, ":formats": formats_json(formats), ":now": millis(now), ":horizon": horizon(now),
                ":limit": limit,
            };
            Ok(u32::try_from(count(conn, sql!("due"), params)?).unwrap_or(u32::MAX))
        })
    }

    fn queues_waiting(&self) -> Result<Vec<String>> {
        self.read(|conn| texts(conn, sql!("queues_waiting"), &[]))
    }

    fn due_formats(&self, queue: &str) -> Result<Vec<String>> {
        self.read(|conn| texts(conn, sql!("due_formats"), named_params! {":queue": queue}))
    }

    fn claim(&mut self, claim: &Claim, now: DateTime<Utc>) -> Result<Option<Job>> {
        let listeners = self.listeners.clone();
        self.write(|tx| runs::claim_next(tx, claim, &listeners, now))
    }

    fn progress(&mut self, token: &str, progress: &str) -> Result<()> {
        self.write(|tx| {
            change(tx, sql!("progress"), named_params! {":token": token, ":progress": progress})?;
            Ok(())
        })
    }

    fn finish(&mut self, run: &Run, node: &str) -> Result<Settled> {
        let listeners = self.listeners.clone();
        self.write(|tx| {
            let settled = runs::finish(tx, run, node, &listeners)?;
            fault::point("finish.before_commit")?;
            Ok(settled)
        })
    }

    fn finish_and_claim(&mut self, run: &Run, claim: &Claim, now: DateTime<Utc>) -> Result<(Settled, Option<Job>)> {
        let listeners = self.listeners.clone();
        self.write(|tx| {
            let done = (runs::finish(tx, run, &claim.node, &listeners)?, runs::claim_next(tx, claim, &listeners, now)?);
            fault::point("finish.before_commit")?;
            Ok(done)
        })
    }

    fn fail(&mut self, run: &Run, node: &str, note: &FailureNote<'_>) -> Result<bool> {
        let listeners = self.listeners.failed.clone();
        self.write(|tx| {
            deliveries::deliver(tx, run, &listeners)?;
            let params = named_params! {
                ":token": run.token, ":state": note.reason.state().number(), ":reason": note.reason.text(),
                ":detail": note.detail, ":now": millis(run.finished_at), ":keep_token": note.keeps_token,
            };
            let mine = change(tx, sql!("fail"), params)? == 1;
            if mine {
                runs::record(tx, run, node)?;
            }
            fault::point("finish.before_commit")?;
            Ok(mine)
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
        self.write(|tx| Ok(change(tx, sql!("let_go"), named_params! {":token": token})? == 1))
    }

    fn forget(&mut self, id: i64, published_at: DateTime<Utc>) -> Result<bool> {
        self.write(|tx| {
            Ok(change(tx, sql!("forget"), named_params! {":id": id, ":published_at": millis(published_at)})? == 1)
        })
    }

    fn fulfilled(&self, since: DateTime<Utc>) -> Result<Vec<(i64, String)>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(sql!("fulfilled"))?;
            let rows =
                statement.query_map(named_params! {":since": millis(since)}, |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn cancel(&mut self, filename: &str, client: Option<&str>, force: bool, now: DateTime<Utc>) -> Result<Cancelled> {
        self.write(|tx| {
            let Some(job) = find(tx, filename)? else {
                return Ok(Cancelled::NotLive);
            };
            if matches!(job.phase, Phase::Failed { .. }) {
                return Ok(Cancelled::NotLive);
            }
            let client = client.unwrap_or(ANONYMOUS);
            change(tx, sql!("interest_drop"), named_params! {":job_id": job.id, ":client": client})?;
            let others = count(tx, sql!("interest_count"), named_params! {":job_id": job.id, ":client": client})?;
            if others > 0 && !force {
                return Ok(Cancelled::StillWanted(others));
            }
            if change(tx, sql!("delete_queued"), named_params! {":id": job.id})? == 1 {
                return Ok(Cancelled::Removed);
            }
            change(tx, sql!("mark_cancelled"), named_params! {":id": job.id, ":now": millis(now)})?;
            Ok(Cancelled::Marked)
        })
    }

    fn dismiss(&mut self, filename: &str) -> Result<bool> {
        self.write(|tx| {
            let Some(job) = find(tx, filename)? else {
                return Ok(false);
            };
            Ok(change(tx, sql!("dismiss"), named_params! {":id": job.id})? == 1)
        })
    }

    fn retry_failed(&mut self, now: DateTime<Utc>) -> Result<RetriedAll> {
        self.write(|tx| {
            let queued = change(tx, sql!("retry_failed"), named_params! {":now": millis(now)})? as u64;
            Ok(RetriedAll { queued, skipped: count(tx, sql!("count_undead"), &[])? })
        })
    }

    fn purge(&mut self, state: State, before: DateTime<Utc>, dry_run: bool) -> Result<u64> {
        self.transact(|tx| {
            let params = named_params! {":state": state.number(), ":before": millis(before)};
            Ok((change(tx, sql!("purge"), params)? as u64, !dry_run))
        })
    }

    fn expire_failed(&mut self, before: DateTime<Utc>, max: u64, now: DateTime<Utc>) -> Result<u64> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        self.write(|tx| {
            let params = named_params! {":before": millis(before), ":max": max, ":horizon": horizon(now)};
            Ok(change(tx, sql!("expire_failed"), params)? as u64)
        })
    }

    fn expire_waits(&mut self, now: DateTime<Utc>) -> Result<u64> {
        let listeners = self.listeners.clone();
        self.write(|tx| runs::expire_waits(tx, &listeners, now))
    }

    fn needed_bases(&self) -> Result<Vec<(String, DateTime<Utc>)>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(sql!("needed_bases"))?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, from_millis(row.get(1)?))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn due_files(&self, before: DateTime<Utc>, now: DateTime<Utc>, (skip, limit): (u32, u32)) -> Result<Vec<String>> {
        self.read(|conn| {
            let horizon = millis(now) + 60_000;
            let params = named_params! {
                ":before": millis(before), ":horizon": horizon, ":skip": skip, ":limit": limit,
            };
            texts(conn, sql!("due_files"), params)
        })
    }

    fn present_bytes(&self) -> Result<u64> {
        self.read(|conn| count(conn, sql!("present_bytes"), &[]))
    }

    fn accessed(&mut self, filename: &str, at: DateTime<Utc>, known: DateTime<Utc>) -> Result<()> {
        let known = named_params! {":filename": filename, ":before": millis(known)};
        if self.read(|conn| count(conn, sql!("is_unused"), known))? == 0 {
            return Ok(());
        }
        let params = named_params! {":filename": filename, ":at": millis(at)};
        let noted = turn::or_never(&mut self.conn, |conn| conn.execute(sql!("accessed"), params)).flatten();
        noted.map_err(Into::into).and_then(|_| self.log.sync()).map_err(|error| explain(&self.path, error))
    }

    fn accesses(&self, since: DateTime<Utc>) -> Result<Vec<(String, DateTime<Utc>)>> {
        self.read(|conn| {
            let mut statement = conn.prepare(sql!("accesses"))?;
            let rows = statement.query_map(named_params! {":since": millis(since)}, |row| {
                Ok((row.get(0)?, from_millis(row.get(1)?)))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn next_to_check(&self, formats: &[String], before: DateTime<Utc>) -> Result<Option<Run>> {
        self.read(|conn| {
            let params = named_params! {
                ":formats": texts_json(formats), ":before": millis(before), ":horizon": millis(before) + 120_000,
            };
            let mut statement = conn.prepare_cached(sql!("next_to_check"))?;
            let mut rows = statement.query(params)?;
            rows.next()?.map(rows::run).transpose()
        })
    }

    fn checked(&mut self, token: &str, now: DateTime<Utc>) -> Result<()> {
        self.write(|tx| {
            Ok(tx.execute(sql!("checked"), named_params! {":token": token, ":now": millis(now)}).map(drop)?)
        })
    }

    fn swept(&mut self, filenames: &[String]) -> Result<()> {
        if filenames.is_empty() {
            return Ok(());
        }
        self.write(|tx| {
            let mut statement = tx.prepare_cached(sql!("swept"))?;
            for filename in filenames {
                statement.execute(named_params! {":filename": filename})?;
            }
            Ok(())
        })
    }

    fn still_there(&mut self, filename: &str, published_at: DateTime<Utc>) -> Result<()> {
        self.write(|tx| {
            let params = named_params! {":filename": filename, ":published_at": millis(published_at)};
            change(tx, sql!("still_there"), params)?;
            Ok(())
        })
    }

    fn runs(&self, past: &Past) -> Result<Vec<Run>> {
        let params = named_params! {
            ":filename": past.filename, ":format": past.format, ":lang": past.lang, ":client": past.client,
            ":outcome": past.outcome.map(Outcome::text), ":since": past.since.map_or(i64::MIN, millis),
            ":limit": past.limit.map_or(-1, i64::from),
        };
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached(if past.filename.is_some() { sql!("runs_of") } else { sql!("runs") })?;
            let mut rows = statement.query(params)?;
            let mut runs = Vec::new();
            while let Some(row) = rows.next()? {
                runs.push(rows::run(row)?);
            }
            Ok(runs)
        })
    }

    fn meta_of_file(&self, filename: &str) -> Result<Option<String>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(sql!("meta_of_file"))?;
            Ok(statement.query_row(named_params! {":filename": filename}, |row| row.get(0)).optional()?.flatten())
        })
    }

    fn ended(&self, since: DateTime<Utc>, visit: &mut dyn FnMut(Ended)) -> Result<()> {
        self.read(|conn| {
            let mut statement = conn.prepare(sql!("ended"))?;
            let mut rows = statement.query(named_params! {":since": millis(since)})?;
            while let Some(row) = rows.next()? {
                visit(rows::ended(row)?);
            }
            Ok(())
        })
    }

    fn recent_durations(&self, format: &str, limit: u32) -> Result<Vec<Duration>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(sql!("recent_durations"))?;
            // A clock that was set back during a run makes it one that took no time.
            let took =
                |row: &rusqlite::Row<'_>| row.get(0).map(|millis: i64| Duration::from_millis(millis.max(0) as u64));
            let rows = statement.query_map(named_params! {":format": format, ":limit": limit}, took)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn prune_history(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        self.write(|tx| {
            let params = named_params! {":before": millis(before), ":max": max, ":limit": 10_000};
            Ok(change(tx, sql!("prune_history"), params)? as u64)
        })
    }

    fn tell(&mut self, listeners: Listeners) {
        self.listeners = listeners;
    }

    fn next_delivery(&self, listeners: &[String], now: DateTime<Utc>) -> Result<Option<Delivery>> {
        let next = self.read(|conn| deliveries::next(conn, listeners, now))?;
        // It is told under its number, which a power cut must not give away a second time.
        next.is_some().then(|| self.log.sync()).transpose()?;
        Ok(next)
    }

    fn deliveries(&self) -> Result<Vec<Delivery>> {
        self.read(deliveries::all)
    }

    fn delivered(&mut self, id: i64) -> Result<()> {
        self.write(|tx| Ok(tx.execute(sql!("delivered"), named_params! {":id": id}).map(drop)?))
    }

    fn undelivered(&mut self, id: i64, error: &str, again: Option<DateTime<Utc>>) -> Result<()> {
        let params = named_params! {":id": id, ":error": error, ":due_at": again.map(millis)};
        self.write(|tx| Ok(tx.execute(sql!("undelivered"), params).map(drop)?))
    }

    fn retry_delivery(&mut self, id: i64, now: DateTime<Utc>) -> Result<bool> {
        self.write(|tx| Ok(tx.execute(sql!("retry_delivery"), named_params! {":id": id, ":now": millis(now)})? == 1))
    }

    fn forget_deliveries(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64> {
        let params = named_params! {":before": millis(before), ":max": i64::try_from(max).unwrap_or(i64::MAX)};
        self.write(|tx| Ok(tx.execute(sql!("forget_deliveries"), params)? as u64))
    }

    fn tokens(&self) -> Result<Vec<String>> {
        self.read(|conn| texts(conn, sql!("tokens"), &[]))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn a_statement_with_a_limit_is_compiled_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let store = Sqlite::open(file.path(), "the id").expect("a queue");
        let mut statement = store.conn.prepare(sql!("recent_durations")).expect("a statement");
        for limit in 1..4 {
            statement.exists(named_params! {":format": "epub", ":limit": limit}).expect("a look");
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
