//! Rows of the SQLite tables as jobs and runs; columns by name.

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Utc};
use rusqlite::Row;
use rusqlite::types::FromSql;

use crate::clock::from_millis;
use crate::job::{Ended, Job, Measured, Phase, Run, State, Waiting};
use crate::key::Key;
use crate::store::Delivery;

fn get<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T> {
    row.get(column).with_context(|| format!("reading column {column}"))
}

fn time(row: &Row<'_>, column: &str) -> Result<Option<DateTime<Utc>>> {
    Ok(get::<Option<i64>>(row, column)?.map(from_millis))
}

fn sure_time(row: &Row<'_>, column: &str) -> Result<DateTime<Utc>> {
    Ok(from_millis(get(row, column)?))
}

fn word<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T> {
    text.parse().map_err(anyhow::Error::msg)
}

fn key(row: &Row<'_>) -> Result<Key> {
    Ok(Key {
        title: get(row, "title")?,
        lang: get(row, "lang")?,
        font: get(row, "font")?,
        format: get(row, "format")?,
        options: serde_json::from_str(&get::<String>(row, "options")?).context("reading options")?,
    })
}

/// A row of `jobs`.
pub(super) fn job(row: &Row<'_>) -> Result<Job> {
    Ok(Job {
        id: get(row, "id")?,
        key: key(row)?,
        filename: get(row, "filename")?,
        base_filename: get(row, "base_filename")?,
        queue: get(row, "queue")?,
        client: get(row, "client")?,
        meta: get(row, "meta")?,
        priority: get(row, "priority")?,
        rank: get(row, "rank")?,
        submitted_at: sure_time(row, "submitted_at")?,
        newer_than: time(row, "newer_than")?,
        cancel_at: time(row, "cancel_at")?,
        attempts: get(row, "attempts")?,
        retries: get(row, "retries")?,
        interruptions: get(row, "interruptions")?,
        stops: get(row, "stops")?,
        base_waits: get(row, "base_waits")?,
        last_run: get(row, "last_run")?,
        phase: phase(row)?,
    })
}

fn phase(row: &Row<'_>) -> Result<Phase> {
    match State::from_number(get(row, "state")?) {
        Some(State::Queued) => Ok(Phase::Queued { later: later(row)? }),
        Some(State::Started) => Ok(Phase::Started {
            token: get(row, "token")?,
            slot: get(row, "slot")?,
            worker: get(row, "worker")?,
            since: sure_time(row, "started_at")?,
            deadline: sure_time(row, "deadline_at")?,
            progress: get(row, "progress")?,
        }),
        Some(State::FailedTimeout | State::FailedUnknown) => Ok(Phase::Failed {
            reason: word(&get::<String>(row, "reason")?)?,
            detail: get(row, "detail")?,
            at: sure_time(row, "finished_at")?,
            token: get(row, "token")?,
        }),
        None => bail!("a state that no version knows"),
    }
}

fn later(row: &Row<'_>) -> Result<Option<(DateTime<Utc>, Waiting)>> {
    let why = get::<Option<String>>(row, "waits_for")?;
    Ok(time(row, "due_at")?.zip(why.map(|text| word(&text)).transpose()?))
}

/// What statistics need of a row of `runs`.
pub(super) fn ended(row: &Row<'_>) -> Result<Ended> {
    let size = |column| Ok::<_, anyhow::Error>(get::<Option<i64>>(row, column)?.map(i64::unsigned_abs));
    Ok(Ended {
        format: get(row, "format")?,
        lang: get(row, "lang")?,
        client: get(row, "client")?,
        outcome: word(&get::<String>(row, "outcome")?)?,
        reason: get::<Option<String>>(row, "reason")?.map(|text| word(&text)).transpose()?,
        submitted_at: sure_time(row, "submitted_at")?,
        started_at: sure_time(row, "started_at")?,
        finished_at: sure_time(row, "finished_at")?,
        bytes: size("bytes")?,
        peak_memory: size("peak_memory")?,
        cpu_millis: size("cpu_millis")?,
    })
}

/// A row of `runs`.
pub(super) fn run(row: &Row<'_>) -> Result<Run> {
    Ok(Run {
        token: get(row, "token")?,
        job_id: get(row, "job_id")?,
        key: key(row)?,
        filename: get(row, "filename")?,
        queue: get(row, "queue")?,
        client: get(row, "client")?,
        meta: get(row, "meta")?,
        outcome: word(&get::<String>(row, "outcome")?)?,
        reason: get::<Option<String>>(row, "reason")?.map(|text| word(&text)).transpose()?,
        detail: get(row, "detail")?,
        submitted_at: sure_time(row, "submitted_at")?,
        started_at: sure_time(row, "started_at")?,
        finished_at: sure_time(row, "finished_at")?,
        published_at: time(row, "published_at")?,
        measured: Measured {
            bytes: get::<Option<i64>>(row, "bytes")?.map(i64::unsigned_abs),
            exit_code: get(row, "exit_code")?,
            signal: get(row, "signal")?,
            peak_memory: get::<Option<i64>>(row, "peak_memory")?.map(i64::unsigned_abs),
            cpu_millis: get::<Option<i64>>(row, "cpu_millis")?.map(i64::unsigned_abs),
        },
        fingerprint: get(row, "fingerprint")?,
    })
}

/// A row of `deliveries`.
pub(super) fn delivery(row: &Row<'_>) -> Result<Delivery> {
    Ok(Delivery {
        id: get(row, "id")?,
        listener: get(row, "listener")?,
        job_id: get(row, "job_id")?,
        key: key(row)?,
        filename: get(row, "filename")?,
        client: get(row, "client")?,
        meta: get(row, "meta")?,
        attempts: get(row, "attempts")?,
        outcome: word(&get::<String>(row, "outcome")?)?,
        reason: get::<Option<String>>(row, "reason")?.map(|text| word(&text)).transpose()?,
        detail: get(row, "detail")?,
        happened_at: sure_time(row, "happened_at")?,
        since: sure_time(row, "since")?,
        due_at: time(row, "due_at")?,
        tries: get(row, "tries")?,
        error: get(row, "error")?,
    })
}
