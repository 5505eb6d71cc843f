//! What a request does to the rows. The row of the file is locked first; where there is none, the unique name decides who of
//! two made it, and the other looks again.

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};

use super::link::Transaction;
use super::params::named;
use super::rows::{self, Cells, sure_int};
use super::{count, millis, sure};
use crate::job::Job;
use crate::rules::{self, Step};
use crate::store::{ANONYMOUS, Ask, Requested, Room};

/// How often a request looks again for a row that somebody else makes and takes away.
const LOOKS: usize = 10;

/// So far below its bound a queue takes the new jobs of many at once. No server has as many sessions, so they do not pass it.
const FAR: u64 = 1000;

/// Who else may bring new jobs into a bounded queue until this transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Others who come far below the bound.
    Shared,
    /// Nobody: one is counted after the other.
    Alone,
}

/// The queue is near its bound: this takes a turn alone.
#[derive(Debug)]
pub(super) struct Crowded;

impl std::fmt::Display for Crowded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the queue is nearly full")
    }
}

impl std::error::Error for Crowded {}

/// What a transaction knows of the queues whose bounds it has looked at.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) room: Room,
    turn: Turn,
}

impl Desk {
    pub(super) fn new(turn: Turn) -> Self {
        Self { room: Room::default(), turn }
    }
}

/// Waits for a turn to bring new jobs into a bounded queue.
pub(super) fn take_turn(tx: &Transaction<'_>, queue: &str, turn: Turn) -> Result<()> {
    let sql = match turn {
        Turn::Shared => sql!("queue_turn_shared"),
        Turn::Alone => sql!("queue_turn"),
    };
    tx.query(sql, named! {":queue": queue}).map(drop)
}

/// The bound that one more job would pass, if there is one.
///
/// # Errors
/// [`Crowded`] where others might pass it at the same instant.
pub(super) fn refusal(tx: &Transaction<'_>, ask: &Ask, desk: &mut Desk) -> Result<Option<Requested>> {
    let (queue, turn) = (ask.queue.as_str(), desk.turn);
    desk.room.refusal(
        ask,
        |bound| {
            take_turn(tx, queue, turn)?;
            let counted = count(tx, sql!("count_queued"), named! {":queue": queue, ":bound": bound})?;
            let is_near = counted + FAR > bound.unsigned_abs();
            if is_near && turn == Turn::Shared { Err(Crowded.into()) } else { Ok(counted) }
        },
        |client, bound| {
            tx.query(sql!("client_lock"), named! {":queue": queue, ":client": client})?;
            count(tx, sql!("count_client"), named! {":queue": queue, ":client": client, ":bound": bound})
        },
    )
}

/// Inserts, joins, revives or refuses.
pub(super) fn request(tx: &Transaction<'_>, ask: &Ask, desk: &mut Desk, now: DateTime<Utc>) -> Result<Requested> {
    for _ in 0..LOOKS {
        if let Some(answer) = try_request(tx, ask, desk, now)? {
            if let Requested::Queued(job) | Requested::Joined(job) = &answer {
                follow_up(tx, ask, job.id, now)?;
            }
            return Ok(answer);
        }
    }
    anyhow::bail!("the row of {} comes and goes", ask.filename)
}

/// `None` when somebody else has made the row meanwhile.
fn try_request(tx: &Transaction<'_>, ask: &Ask, desk: &mut Desk, now: DateTime<Utc>) -> Result<Option<Requested>> {
    let row = find_to_change(tx, &ask.filename)?;
    let step = rules::on_request(row.as_ref(), ask.retry, ask.hold, now);
    Ok(Some(match (step, row) {
        (Step::Hold, Some(job)) => Requested::Failing(job),
        (Step::Want, Some(job)) => {
            tx.execute(sql!("want"), named! {":id": job.id, ":now": millis(now)})?;
            note_interest(tx, job.id, ask.client.as_deref())?;
            Requested::Failing(job)
        }
        (Step::Join, Some(job)) => Requested::Joined(join(tx, ask, &job, now)?),
        (Step::Revive | Step::Insert | Step::Hold | Step::Want | Step::Join, row) => {
            if let Some(refused) = refusal(tx, ask, desk)? {
                return Ok(Some(refused));
            }
            let id = match row {
                Some(job) => Some(revive(tx, ask, job.id, now).map(|()| job.id)?),
                None => insert(tx, ask, now)?,
            };
            let Some(id) = id else { return Ok(None) };
            desk.room.take(ask);
            Requested::Queued(sure(tx, id)?)
        }
    }))
}

/// The job for a file, held until the transaction ends.
pub(super) fn find_to_change(tx: &Transaction<'_>, filename: &str) -> Result<Option<Job>> {
    tx.first(sql!("find_to_change"), named! {":filename": filename})?.map(|row| rows::job(&row)).transpose()
}

fn join(tx: &Transaction<'_>, ask: &Ask, job: &Job, now: DateTime<Utc>) -> Result<Job> {
    let rank = next_rank(tx, ask, now)?;
    tx.execute(
        sql!("join"),
        named! {
            ":id": job.id, ":priority": ask.priority, ":rank": rank, ":now": millis(now),
            ":newer_than": ask.refresh.then_some(millis(now)), ":due_at": due_at(ask, now),
            ":wait_until": ask.wait_until.map(millis),
        },
    )?;
    sure(tx, job.id)
}

pub(super) fn due_at(ask: &Ask, now: DateTime<Utc>) -> Option<i64> {
    ask.not_before.filter(|at| *at > now).map(millis)
}

fn next_rank(tx: &Transaction<'_>, ask: &Ask, now: DateTime<Utc>) -> Result<i64> {
    if let Some(rank) = ask.rank {
        return Ok(rank);
    }
    let last = match ask.client.as_deref() {
        None => None,
        Some(client) => last_rank(tx, client, ask.priority)?,
    };
    Ok(rules::rank(now, ask.priority, last))
}

/// The last rank that a client has at a priority.
pub(super) fn last_rank(tx: &Transaction<'_>, client: &str, priority: i64) -> Result<Option<i64>> {
    let row = tx.first(sql!("last_rank"), named! {":client": client, ":priority": priority})?;
    row.context("asking for the last rank")?.int("last")
}

/// Writes the row of a new job; `None` when there is one for that file.
fn insert(tx: &Transaction<'_>, ask: &Ask, now: DateTime<Utc>) -> Result<Option<i64>> {
    let (rank, due_at, key) = (next_rank(tx, ask, now)?, due_at(ask, now), &ask.key);
    let params = named! {
        ":title": key.title, ":lang": key.lang, ":font": key.font, ":format": key.format,
        ":options": key.options_json(), ":filename": ask.filename, ":base_filename": ask.base_filename,
        ":queue": ask.queue, ":client": ask.client, ":meta": ask.meta, ":pages": ask.pages.map(i64::from),
        ":priority": ask.priority, ":rank": rank, ":submitted_at": millis(now),
        ":newer_than": ask.refresh.then_some(millis(now)), ":due_at": due_at,
        ":waits_for": due_at.map(|_| "not_before"), ":wait_until": ask.wait_until.map(millis),
    };
    tx.first(sql!("insert"), params)?.map(|row| sure_int(&row, "id")).transpose()
}

/// Makes a failed row that of a new job.
fn revive(tx: &Transaction<'_>, ask: &Ask, id: i64, now: DateTime<Utc>) -> Result<()> {
    let (rank, due_at) = (next_rank(tx, ask, now)?, due_at(ask, now));
    tx.execute(sql!("interest_clear"), named! {":job_id": id})?;
    tx.execute(
        sql!("revive"),
        named! {
            ":id": id, ":queue": ask.queue, ":client": ask.client, ":meta": ask.meta,
            ":pages": ask.pages.map(i64::from), ":priority": ask.priority, ":rank": rank,
            ":base_filename": ask.base_filename, ":submitted_at": millis(now),
            ":newer_than": ask.refresh.then_some(millis(now)), ":due_at": due_at,
            ":waits_for": due_at.map(|_| "not_before"), ":wait_until": ask.wait_until.map(millis),
        },
    )
    .map(drop)
}

/// What every wish for a live job does beside its row.
fn follow_up(tx: &Transaction<'_>, ask: &Ask, id: i64, now: DateTime<Utc>) -> Result<()> {
    note_interest(tx, id, ask.client.as_deref())?;
    if ask.retry {
        tx.execute(sql!("retry_relatives"), named! {":filename": ask.filename, ":now": millis(now)})?;
    }
    Ok(())
}

fn note_interest(tx: &Transaction<'_>, job_id: i64, client: Option<&str>) -> Result<()> {
    let client = client.unwrap_or(ANONYMOUS);
    tx.execute(sql!("interest"), named! {":job_id": job_id, ":client": client}).map(drop)
}
