//! What is to be told to others: written in the transaction that ends a job, gone when it was told.

use anyhow::Result;
use chrono::{DateTime, Duration, Utc};
use rusqlite::{Connection, Transaction, named_params};

use super::sqlite::{millis, texts_json};
use super::{Delivery, rows};
use crate::job::{Failure, Run};

/// No back-off reaches so far.
const HORIZON: Duration = Duration::days(2);

/// Notes the end of a run, before its row changes.
pub(super) fn deliver(tx: &Transaction<'_>, run: &Run, listeners: &[String]) -> Result<()> {
    if listeners.is_empty() {
        return Ok(());
    }
    tx.execute(
        sql!("deliver"),
        named_params! {
            ":token": run.token, ":listeners": texts_json(listeners), ":outcome": run.outcome.text(),
            ":reason": run.reason.map(Failure::text), ":detail": run.detail, ":now": millis(run.finished_at),
        },
    )?;
    Ok(())
}

/// Notes the jobs whose patience is over, before their rows change.
pub(super) fn deliver_expired(tx: &Transaction<'_>, listeners: &[String], now: DateTime<Utc>) -> Result<()> {
    if !listeners.is_empty() {
        let params = named_params! {":listeners": texts_json(listeners), ":now": millis(now)};
        tx.execute(sql!("deliver_expired"), params)?;
    }
    Ok(())
}

pub(super) fn next(conn: &Connection, listeners: &[String], now: DateTime<Utc>) -> Result<Option<Delivery>> {
    let params = named_params! {
        ":listeners": texts_json(listeners), ":now": millis(now), ":horizon": millis(now + HORIZON),
    };
    let mut statement = conn.prepare_cached(sql!("next_delivery"))?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(rows::delivery).transpose()
}

pub(super) fn all(conn: &Connection) -> Result<Vec<Delivery>> {
    let mut statement = conn.prepare(sql!("deliveries"))?;
    let mut rows = statement.query([])?;
    let mut deliveries = Vec::new();
    while let Some(row) = rows.next()? {
        deliveries.push(rows::delivery(row)?);
    }
    Ok(deliveries)
}
