//! What a request does to the rows, under the write lock of its caller's transaction.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::Result;
use chrono::{DateTime, Utc};
use rusqlite::{Transaction, named_params};

use super::sqlite::{change, count, find, millis, sure};
use super::{Ask, Batch, Bound, QueueBounds, Requested};
use crate::fault;
use crate::job::Job;
use crate::rules::{self, Step};

/// What waits already, counted once in a transaction and kept up by hand: a batch would else count the queue for each line.
#[derive(Debug, Default)]
pub(super) struct Room {
    queued: BTreeMap<String, u64>,
    of_client: BTreeMap<(String, String), u64>,
}

/// Every one in turn until one is refused.
pub(super) fn request_all(tx: &Transaction<'_>, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch> {
    let mut room = Room::default();
    let (mut queued, mut joined, mut failing) = (0, 0, 0);
    for (at, ask) in asks.iter().enumerate() {
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

/// The name under which all who do not give one are interested in a job.
pub(super) const ANONYMOUS: &str = "";

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
            if let Some(refused) = take_room(tx, ask, room)? {
                return Ok(refused);
            }
            Requested::Queued(sure(tx, put(tx, ask, row.map(|job| job.id), now)?)?)
        }
    };
    if let Requested::Queued(job) | Requested::Joined(job) = &answer {
        note_interest(tx, job.id, ask.client.as_deref())?;
        if ask.retry {
            let params = named_params! {":filename": job.filename, ":now": millis(now)};
            tx.prepare_cached(sql!("retry_relatives"))?.execute(params)?;
        }
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

/// Takes a place among the waiting jobs; the bound that is reached, if one is.
fn take_room(tx: &Transaction<'_>, ask: &Ask, room: &mut Room) -> Result<Option<Requested>> {
    let QueueBounds { queued, per_client } = ask.bounds;
    if queued > 0 {
        let params = named_params! {":queue": ask.queue, ":bound": queued as i64};
        let known = room.queued.entry(ask.queue.clone());
        if !take_place(known, queued, || count(tx, sql!("count_queued"), params))? {
            return Ok(Some(Requested::QueueFull));
        }
    }
    if let (true, Some(client)) = (per_client > 0, &ask.client) {
        let params = named_params! {":queue": ask.queue, ":client": client, ":bound": per_client as i64};
        let known = room.of_client.entry((ask.queue.clone(), client.clone()));
        if !take_place(known, per_client, || count(tx, sql!("count_client"), params))? {
            return Ok(Some(Requested::ClientLimit));
        }
    }
    Ok(None)
}

/// Counts one more, if the bound allows it.
fn take_place<K: Ord>(known: Entry<'_, K, u64>, bound: u64, count: impl FnOnce() -> Result<u64>) -> Result<bool> {
    let taken = match known {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(count()?),
    };
    *taken += 1;
    Ok(*taken <= bound)
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
        change(tx, sql!("interest_clear"), named_params! {":job_id": id})?;
        change(
            tx,
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
    let client = client.unwrap_or(ANONYMOUS);
    tx.prepare_cached(sql!("interest"))?.execute(named_params! {":job_id": job_id, ":client": client})?;
    Ok(())
}
