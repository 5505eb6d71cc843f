//! What a request does to the rows, under the write lock of its caller's transaction.

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use rusqlite::{Statement, Transaction, named_params};

use super::sqlite::{change, count, find, millis, sure};
use super::{ANONYMOUS, Ask, Batch, Bound, Requested, Room};
use crate::job::Job;
use crate::rules::{self, Step};

/// The bound that one more job would pass, if there is one.
fn refusal(tx: &Transaction<'_>, ask: &Ask, room: &mut Room) -> Result<Option<Requested>> {
    let queue = &ask.queue;
    room.refusal(
        ask,
        |bound| count(tx, sql!("count_queued"), named_params! {":queue": queue, ":bound": bound}),
        |client, bound| {
            count(tx, sql!("count_client"), named_params! {":queue": queue, ":client": client, ":bound": bound})
        },
    )
}

/// Every one in turn until one is refused. Most lines of a batch are new: those are written without a look before.
pub(super) fn request_all(tx: &Transaction<'_>, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch> {
    let mut room = Room::default();
    let mut statement = tx.prepare_cached(sql!("insert"))?;
    let (mut queued, mut joined, mut failing) = (0, 0, 0);
    for (at, ask) in asks.iter().enumerate() {
        if refusal(tx, ask, &mut room)?.is_none()
            && let Some(id) = insert(tx, &mut statement, ask, now)?
        {
            room.take(ask);
            follow_up(tx, ask, id, now)?;
            queued += 1;
            continue;
        }
        match request(tx, ask, &mut room, now)? {
            Requested::Queued(_) => queued += 1,
            Requested::Joined(_) => joined += 1,
            Requested::Failing(_) => failing += 1,
            Requested::QueueFull => return Ok(Batch::Refused { at, bound: Bound::Queue }),
            Requested::ClientLimit => return Ok(Batch::Refused { at, bound: Bound::Client }),
        }
    }
    Ok(Batch::Stored { queued, joined, failing })
}

/// Inserts, joins, revives or refuses.
pub(super) fn request(tx: &Transaction<'_>, ask: &Ask, room: &mut Room, now: DateTime<Utc>) -> Result<Requested> {
    let row = find(tx, &ask.filename)?;
    let step = rules::on_request(row.as_ref(), ask.retry, ask.hold, now);
    let answer = match (step, row) {
        (Step::Hold, Some(job)) => return Ok(Requested::Failing(job)),
        (Step::Want, Some(job)) => {
            change(tx, sql!("want"), named_params! {":id": job.id, ":now": millis(now)})?;
            note_interest(tx, job.id, ask.client.as_deref())?;
            return Ok(Requested::Failing(job));
        }
        (Step::Join, Some(job)) => Requested::Joined(join(tx, ask, &job, now)?),
        (Step::Revive | Step::Insert | Step::Hold | Step::Want | Step::Join, row) => {
            if let Some(refused) = refusal(tx, ask, room)? {
                return Ok(refused);
            }
            let id = match row {
                Some(job) => revive(tx, ask, job.id, now).map(|()| job.id)?,
                None => insert(tx, &mut *tx.prepare_cached(sql!("insert"))?, ask, now)?
                    .context("a row is there that was not there before")?,
            };
            room.take(ask);
            Requested::Queued(sure(tx, id)?)
        }
    };
    if let Requested::Queued(job) | Requested::Joined(job) = &answer {
        follow_up(tx, ask, job.id, now)?;
    }
    Ok(answer)
}

fn join(tx: &Transaction<'_>, ask: &Ask, job: &Job, now: DateTime<Utc>) -> Result<Job> {
    let rank = next_rank(tx, ask, now)?;
    tx.prepare_cached(sql!("join"))?.execute(named_params! {
        ":id": job.id, ":priority": ask.priority, ":rank": rank, ":now": millis(now),
        ":newer_than": ask.refresh.then_some(millis(now)), ":due_at": due_at(ask, now),
        ":wait_until": ask.wait_until.map(millis),
    })?;
    sure(tx, job.id)
}

fn due_at(ask: &Ask, now: DateTime<Utc>) -> Option<i64> {
    ask.not_before.filter(|at| *at > now).map(millis)
}

fn next_rank(tx: &Transaction<'_>, ask: &Ask, now: DateTime<Utc>) -> Result<i64> {
    if let Some(rank) = ask.rank {
        return Ok(rank);
    }
    let last = match &ask.client {
        None => None,
        Some(client) => {
            let params = named_params! {":client": client, ":priority": ask.priority};
            tx.prepare_cached(sql!("last_rank"))?.query_row(params, |row| row.get::<_, Option<i64>>(0))?
        }
    };
    Ok(rules::rank(now, ask.priority, last))
}

/// Writes the row of a new job by the statement `insert`; `None` when there is one for that file.
fn insert(tx: &Transaction<'_>, statement: &mut Statement<'_>, ask: &Ask, now: DateTime<Utc>) -> Result<Option<i64>> {
    let (rank, submitted_at, due_at, key) = (next_rank(tx, ask, now)?, millis(now), due_at(ask, now), &ask.key);
    let params = named_params! {
        ":title": key.title, ":lang": key.lang, ":font": key.font, ":format": key.format, ":options": key.options_json(),
        ":filename": ask.filename, ":base_filename": ask.base_filename, ":queue": ask.queue, ":client": ask.client,
        ":meta": ask.meta, ":pages": ask.pages, ":priority": ask.priority, ":rank": rank,
        ":submitted_at": submitted_at, ":newer_than": ask.refresh.then_some(submitted_at), ":due_at": due_at,
        ":waits_for": due_at.map(|_| "not_before"), ":wait_until": ask.wait_until.map(millis),
    };
    Ok((statement.execute(params)? == 1).then(|| tx.last_insert_rowid()))
}

/// Makes a failed row that of a new job.
fn revive(tx: &Transaction<'_>, ask: &Ask, id: i64, now: DateTime<Utc>) -> Result<()> {
    let (rank, submitted_at, due_at) = (next_rank(tx, ask, now)?, millis(now), due_at(ask, now));
    change(tx, sql!("interest_clear"), named_params! {":job_id": id})?;
    change(
        tx,
        sql!("revive"),
        named_params! {
            ":id": id, ":queue": ask.queue, ":client": ask.client, ":meta": ask.meta, ":pages": ask.pages,
            ":priority": ask.priority, ":rank": rank, ":base_filename": ask.base_filename,
            ":submitted_at": submitted_at, ":newer_than": ask.refresh.then_some(submitted_at), ":due_at": due_at,
            ":waits_for": due_at.map(|_| "not_before"), ":wait_until": ask.wait_until.map(millis),
        },
    )?;
    Ok(())
}

/// What every wish for a live job does beside its row.
fn follow_up(tx: &Transaction<'_>, ask: &Ask, id: i64, now: DateTime<Utc>) -> Result<()> {
    note_interest(tx, id, ask.client.as_deref())?;
    if ask.retry {
        let params = named_params! {":filename": ask.filename, ":now": millis(now)};
        change(tx, sql!("retry_relatives"), params)?;
    }
    Ok(())
}

fn note_interest(tx: &Transaction<'_>, job_id: i64, client: Option<&str>) -> Result<()> {
    let client = client.unwrap_or(ANONYMOUS);
    tx.prepare_cached(sql!("interest"))?.execute(named_params! {":job_id": job_id, ":client": client})?;
    Ok(())
}
