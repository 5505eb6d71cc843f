//! What a request does to the rows, under the write lock of its caller's transaction.

use anyhow::Result;
use chrono::{DateTime, Utc};
use rusqlite::{Transaction, named_params};

use super::sqlite::{count, find, millis, sure};
use super::{Ask, QueueBounds, Requested};
use crate::fault;
use crate::job::Job;
use crate::rules::{self, Step};

/// Inserts, joins, revives or refuses.
pub(super) fn request(tx: &Transaction<'_>, ask: &Ask, now: DateTime<Utc>) -> Result<Requested> {
    let row = find(tx, &ask.filename)?;
    let step = rules::on_request(row.as_ref(), ask.retry, ask.hold, now);
    let answer = match (step, row) {
        (Step::Hold, Some(job)) => return Ok(Requested::Failing(job)),
        (Step::Want, Some(job)) => {
            tx.execute(sql!("want"), named_params! {":id": job.id, ":now": millis(now)})?;
            return Ok(Requested::Failing(job));
        }
        (Step::Join, Some(job)) => Requested::Joined(join(tx, ask, &job, now)?),
        (Step::Revive | Step::Insert | Step::Hold | Step::Want | Step::Join, row) => {
            if let Some(refused) = over_bounds(tx, ask)? {
                return Ok(refused);
            }
            Requested::Queued(sure(tx, put(tx, ask, row.map(|job| job.id), now)?)?)
        }
    };
    if let Requested::Queued(job) | Requested::Joined(job) = &answer {
        note_interest(tx, job.id, ask.client.as_deref())?;
    }
    fault::point("request.before_commit")?;
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

/// Whether a bound on waiting jobs is reached, and which.
fn over_bounds(tx: &Transaction<'_>, ask: &Ask) -> Result<Option<Requested>> {
    let QueueBounds { queued, per_client } = ask.bounds;
    if queued > 0 {
        let bound = queued as i64;
        if count(tx, sql!("count_queued"), named_params! {":queue": ask.queue, ":bound": bound})? >= queued {
            return Ok(Some(Requested::QueueFull));
        }
    }
    if let (true, Some(client)) = (per_client > 0, &ask.client) {
        let bound = per_client as i64;
        let params = named_params! {":queue": ask.queue, ":client": client, ":bound": bound};
        if count(tx, sql!("count_client"), params)? >= per_client {
            return Ok(Some(Requested::ClientLimit));
        }
    }
    Ok(None)
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

/// Writes the row of a new or a revived job; `id` is the row that is revived.
fn put(tx: &Transaction<'_>, ask: &Ask, id: Option<i64>, now: DateTime<Utc>) -> Result<i64> {
    let rank = next_rank(tx, ask, now)?;
    let (submitted_at, options) = (millis(now), ask.key.options_json());
    let newer_than = ask.refresh.then_some(submitted_at);
    let due_at = due_at(ask, now);
    let waits_for = due_at.map(|_| "not_before");
    let wait_until = ask.wait_until.map(millis);
    let key = &ask.key;
    if let Some(id) = id {
        tx.execute(
            sql!("revive"),
            named_params! {
                ":id": id, ":queue": ask.queue, ":client": ask.client, ":meta": ask.meta, ":pages": ask.pages,
                ":priority": ask.priority, ":rank": rank, ":base_filename": ask.base_filename,
                ":submitted_at": submitted_at, ":newer_than": newer_than, ":due_at": due_at, ":waits_for": waits_for,
                ":wait_until": wait_until,
            },
        )?;
        return Ok(id);
    }
    Ok(tx.prepare_cached(sql!("insert"))?.query_row(
        named_params! {
            ":title": key.title, ":lang": key.lang, ":font": key.font, ":format": key.format, ":options": options,
            ":filename": ask.filename, ":base_filename": ask.base_filename, ":queue": ask.queue, ":client": ask.client,
            ":meta": ask.meta, ":pages": ask.pages, ":priority": ask.priority, ":rank": rank,
            ":submitted_at": submitted_at, ":newer_than": newer_than, ":due_at": due_at, ":waits_for": waits_for,
            ":wait_until": wait_until,
        },
        |row| row.get(0),
    )?)
}

fn note_interest(tx: &Transaction<'_>, job_id: i64, client: Option<&str>) -> Result<()> {
    if let Some(client) = client {
        tx.prepare_cached(sql!("interest"))?.execute(named_params! {":job_id": job_id, ":client": client})?;
    }
    Ok(())
}
