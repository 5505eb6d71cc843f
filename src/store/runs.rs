//! How runs begin and end in the rows, under the write lock of their caller's transaction.

use anyhow::Result;
use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, Transaction, named_params};

use super::sqlite::{change, count, formats_json, horizon, millis, sure};
use super::{Again, Claim, Listeners, Settled, deliveries};
use crate::job::{Job, Outcome, Run};

pub(super) fn record(tx: &Transaction<'_>, run: &Run, node: &str) -> Result<()> {
    let present = i64::from(run.outcome == Outcome::Ready && run.published_at.is_some());
    if present == 1 {
        change(tx, sql!("run_supersede"), named_params! {":filename": run.filename, ":token": run.token})?;
    }
    let signed = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let (key, measured) = (&run.key, &run.measured);
    change(
        tx,
        sql!("run_insert"),
        named_params! {
            ":token": run.token, ":job_id": run.job_id, ":title": key.title, ":lang": key.lang, ":font": key.font,
            ":format": key.format, ":options": key.options_json(), ":filename": run.filename, ":queue": run.queue,
            ":client": run.client, ":meta": run.meta, ":node": node, ":outcome": run.outcome.text(),
            ":reason": run.reason.map(crate::job::Failure::text), ":detail": run.detail,
            ":submitted_at": millis(run.submitted_at), ":started_at": millis(run.started_at),
            ":finished_at": millis(run.finished_at), ":published_at": run.published_at.map(millis),
            ":bytes": signed(measured.bytes), ":exit_code": measured.exit_code, ":signal": measured.signal,
            ":peak_memory": signed(measured.peak_memory), ":cpu_millis": signed(measured.cpu_millis),
            ":present": present, ":fingerprint": run.fingerprint,
        },
    )?;
    Ok(())
}

pub(super) fn put_back(tx: &Transaction<'_>, token: &str, again: Again) -> Result<bool> {
    let counts = again.counts();
    let (due_at, waits_for) = (counts.later.map(|(at, _)| millis(at)), counts.later.map(|(_, why)| why.text()));
    let changed = change(
        tx,
        sql!("requeue"),
        named_params! {
            ":token": token, ":due_at": due_at, ":waits_for": waits_for, ":attempts": counts.attempts,
            ":retries": counts.retries, ":interruptions": counts.interruptions, ":stops": counts.stops,
            ":base_waits": counts.base_waits,
        },
    )?;
    Ok(changed == 1)
}

pub(super) fn claim_next(
    tx: &Transaction<'_>,
    claim: &Claim,
    listeners: &Listeners,
    now: DateTime<Utc>,
) -> Result<Option<Job>> {
    expire_waits(tx, listeners, now)?;
    change(tx, sql!("promote"), named_params! {":now": millis(now), ":horizon": horizon(now)})?;
    let started = || count(tx, sql!("count_started"), named_params! {":queue": claim.queue});
    if claim.max_running > 0 && started()? >= u64::from(claim.max_running) {
        return Ok(None);
    }
    let params = named_params! {
        ":queue": claim.queue, ":formats": formats_json(&claim.formats), ":token": claim.token,
        ":node": claim.node, ":slot": claim.slot, ":worker": claim.worker, ":now": millis(now),
    };
    let id = tx.prepare_cached(sql!("claim"))?.query_row(params, |row| row.get(0)).optional()?;
    id.map(|id| sure(tx, id)).transpose()
}

pub(super) fn finish(tx: &Transaction<'_>, run: &Run, node: &str, listeners: &Listeners) -> Result<Settled> {
    deliveries::deliver(tx, run, &listeners.ready)?;
    let settled = if change(tx, sql!("finish"), named_params! {":token": run.token})? == 1 {
        Settled::Forgotten
    } else if outdate_and_put_back(tx, run)? {
        Settled::QueuedAgain
    } else {
        return Ok(Settled::Lost);
    };
    record(tx, run, node)?;
    Ok(settled)
}

/// Jobs that nobody waits for any more fail.
pub(super) fn expire_waits(tx: &Transaction<'_>, listeners: &Listeners, now: DateTime<Utc>) -> Result<u64> {
    deliveries::deliver_expired(tx, &listeners.failed, now)?;
    Ok(change(tx, sql!("expire_waits"), named_params! {":now": millis(now)})? as u64)
}

/// A newer file was asked for during the run: what it published does not fulfil the job.
pub(super) fn outdate_and_put_back(tx: &Transaction<'_>, run: &Run) -> Result<bool> {
    let published_at = millis(run.published_at.unwrap_or(run.finished_at));
    change(tx, sql!("outdate"), named_params! {":token": run.token, ":published_at": published_at})?;
    put_back(tx, &run.token, Again::Wanted)
}
