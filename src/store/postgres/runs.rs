//! How runs begin and end in the rows, and what of that is to be told.

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::link::Transaction;
use super::params::named;
use super::rows::sure_int;
use super::{count, horizon, millis, names, span, sure};
use crate::job::{Failure, Job, Outcome, Run};
use crate::store::{Again, Claim, Listeners, Settled};

pub(super) fn record(tx: &Transaction<'_>, run: &Run, node: &str) -> Result<()> {
    let is_present = run.outcome == Outcome::Ready && run.published_at.is_some();
    if is_present {
        tx.execute(sql!("run_supersede"), named! {":filename": run.filename.as_str(), ":token": run.token.as_str()})?;
    }
    let signed = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let (key, measured) = (&run.key, &run.measured);
    tx.execute(
        sql!("run_insert"),
        named! {
            ":token": run.token.as_str(), ":job_id": run.job_id, ":title": key.title.as_str(),
            ":lang": key.lang.as_str(), ":font": key.font.as_str(), ":format": key.format.as_str(),
            ":options": key.options_json(), ":filename": run.filename.as_str(), ":queue": run.queue.as_str(),
            ":client": run.client, ":meta": run.meta, ":node": node, ":outcome": run.outcome.text(),
            ":reason": run.reason.map(Failure::text), ":detail": run.detail,
            ":submitted_at": millis(run.submitted_at), ":started_at": millis(run.started_at),
            ":finished_at": millis(run.finished_at), ":published_at": run.published_at.map(millis),
            ":bytes": signed(measured.bytes), ":exit_code": measured.exit_code.map(i64::from),
            ":signal": measured.signal.map(i64::from), ":peak_memory": signed(measured.peak_memory),
            ":cpu_millis": signed(measured.cpu_millis), ":present": i64::from(is_present), ":fingerprint": run.fingerprint,
        },
    )?;
    Ok(())
}

pub(super) fn put_back(tx: &Transaction<'_>, token: &str, again: Again) -> Result<bool> {
    let counts = again.counts();
    let changed = tx.execute(
        sql!("requeue"),
        named! {
            ":token": token, ":due_at": counts.later.map(|(at, _)| millis(at)),
            ":waits_for": counts.later.map(|(_, why)| why.text()), ":attempts": counts.attempts,
            ":retries": counts.retries, ":interruptions": counts.interruptions, ":stops": counts.stops,
            ":base_waits": counts.base_waits,
        },
    )?;
    Ok(changed == 1)
}

/// A newer file was asked for during the run: what it published does not fulfil the job.
fn outdate_and_put_back(tx: &Transaction<'_>, run: &Run) -> Result<bool> {
    let published_at = millis(run.published_at.unwrap_or(run.finished_at));
    tx.execute(sql!("outdate"), named! {":token": run.token.as_str(), ":published_at": published_at})?;
    put_back(tx, &run.token, Again::Wanted)
}

pub(super) fn finish(tx: &Transaction<'_>, run: &Run, node: &str, listeners: &Listeners) -> Result<Settled> {
    deliver(tx, run, &listeners.ready)?;
    let settled = if tx.execute(sql!("finish"), named! {":token": run.token})? == 1 {
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
    let expired = named! {":now": millis(now), ":listeners": listeners.failed};
    count(tx, sql!("expire_waits"), expired)
}

/// Whether a queue has room for one more running job; from here on nobody else counts until this transaction ends.
fn has_room(tx: &Transaction<'_>, claim: &Claim) -> Result<bool> {
    if claim.max_running == 0 {
        return Ok(true);
    }
    let queue = claim.queue.as_str();
    if tx.first(sql!("queue_lock"), named! {":queue": queue})?.is_none() {
        tx.execute(sql!("queue_insert"), named! {":queue": queue})?;
        tx.query(sql!("queue_lock"), named! {":queue": queue})?;
    }
    Ok(count(tx, sql!("count_started"), named! {":queue": queue})? < u64::from(claim.max_running))
}

pub(super) fn claim(
    tx: &Transaction<'_>,
    claim: &Claim,
    listeners: &Listeners,
    now: DateTime<Utc>,
) -> Result<Option<Job>> {
    expire_waits(tx, listeners, now)?;
    tx.execute(sql!("promote"), named! {":now": millis(now), ":horizon": horizon(now)})?;
    if !has_room(tx, claim)? {
        return Ok(None);
    }
    let timeouts: Vec<i64> = claim.formats.iter().map(|(_, timeout)| span(*timeout)).collect();
    let claimed = tx.first(
        sql!("claim"),
        named! {
            ":queue": claim.queue.as_str(), ":formats": names(&claim.formats), ":timeouts": timeouts,
            ":token": claim.token.as_str(), ":node": claim.node.as_str(), ":slot": claim.slot.as_str(),
            ":worker": claim.worker.as_str(), ":now": millis(now), ":lease": span(claim.lease),
        },
    )?;
    claimed.map(|row| sure(tx, sure_int(&row, "id")?)).transpose()
}

/// Notes the end of a run for its listeners, before its row changes.
pub(super) fn deliver(tx: &Transaction<'_>, run: &Run, listeners: &[String]) -> Result<()> {
    if listeners.is_empty() {
        return Ok(());
    }
    tx.execute(
        sql!("deliver"),
        named! {
            ":token": run.token, ":listeners": listeners.to_vec(), ":outcome": run.outcome.text(),
            ":reason": run.reason.map(Failure::text), ":detail": run.detail, ":now": millis(run.finished_at),
        },
    )
    .map(drop)
}
