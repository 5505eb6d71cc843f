//! Rows as jobs and runs; columns by name, the same for each engine.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Utc};

use crate::clock::from_millis;
use crate::job::{Ended, Job, Measured, Phase, Run, State, Waiting};
use crate::key::Key;
use crate::store::Delivery;

/// A row of any engine.
pub(super) trait Cells {
    /// The number in a column.
    fn int(&self, column: &str) -> Result<Option<i64>>;

    /// The text in a column.
    fn text(&self, column: &str) -> Result<Option<String>>;
}

impl Cells for rusqlite::Row<'_> {
    fn int(&self, column: &str) -> Result<Option<i64>> {
        self.get(column).with_context(|| format!("reading column {column}"))
    }

    fn text(&self, column: &str) -> Result<Option<String>> {
        self.get(column).with_context(|| format!("reading column {column}"))
    }
}

/// The number in a column that is never empty.
pub(super) fn sure_int(row: &impl Cells, column: &str) -> Result<i64> {
    row.int(column)?.with_context(|| format!("column {column} is empty"))
}

/// The text in a column that is never empty.
pub(super) fn sure_text(row: &impl Cells, column: &str) -> Result<String> {
    row.text(column)?.with_context(|| format!("column {column} is empty"))
}

fn small<T: TryFrom<i64, Error = std::num::TryFromIntError>>(row: &impl Cells, column: &str) -> Result<Option<T>> {
    row.int(column)?.map(T::try_from).transpose().with_context(|| format!("reading column {column}"))
}

fn counter(row: &impl Cells, column: &str) -> Result<u32> {
    small(row, column)?.with_context(|| format!("column {column} is empty"))
}

fn time(row: &impl Cells, column: &str) -> Result<Option<DateTime<Utc>>> {
    Ok(row.int(column)?.map(from_millis))
}

/// The time in a column that is never empty.
pub(super) fn sure_time(row: &impl Cells, column: &str) -> Result<DateTime<Utc>> {
    Ok(from_millis(sure_int(row, column)?))
}

fn word<T: FromStr<Err = String>>(text: &str) -> Result<T> {
    text.parse().map_err(anyhow::Error::msg)
}

fn key(row: &impl Cells) -> Result<Key> {
    Ok(Key {
        title: sure_text(row, "title")?,
        lang: sure_text(row, "lang")?,
        font: sure_text(row, "font")?,
        format: sure_text(row, "format")?,
        options: serde_json::from_str(&sure_text(row, "options")?).context("reading options")?,
    })
}

/// A row of `jobs`.
pub(super) fn job(row: &impl Cells) -> Result<Job> {
    Ok(Job {
        id: sure_int(row, "id")?,
        key: key(row)?,
        filename: sure_text(row, "filename")?,
        base_filename: row.text("base_filename")?,
        queue: sure_text(row, "queue")?,
        client: row.text("client")?,
        meta: row.text("meta")?,
        priority: sure_int(row, "priority")?,
        rank: sure_int(row, "rank")?,
        submitted_at: sure_time(row, "submitted_at")?,
        newer_than: time(row, "newer_than")?,
        cancel_at: time(row, "cancel_at")?,
        attempts: counter(row, "attempts")?,
        retries: counter(row, "retries")?,
        interruptions: counter(row, "interruptions")?,
        stops: counter(row, "stops")?,
        base_waits: counter(row, "base_waits")?,
        last_run: row.text("last_run")?,
        phase: phase(row)?,
    })
}

fn phase(row: &impl Cells) -> Result<Phase> {
    match State::from_number(sure_int(row, "state")?) {
        Some(State::Queued) => Ok(Phase::Queued { later: later(row)? }),
        Some(State::Started) => Ok(Phase::Started {
            token: sure_text(row, "token")?,
            slot: sure_text(row, "slot")?,
            worker: sure_text(row, "worker")?,
            since: sure_time(row, "started_at")?,
            deadline: sure_time(row, "deadline_at")?,
            progress: row.text("progress")?,
        }),
        Some(State::FailedTimeout | State::FailedUnknown) => Ok(Phase::Failed {
            reason: word(&sure_text(row, "reason")?)?,
            detail: sure_text(row, "detail")?,
            at: sure_time(row, "finished_at")?,
            token: row.text("token")?,
        }),
        None => bail!("a state that no version knows"),
    }
}

fn later(row: &impl Cells) -> Result<Option<(DateTime<Utc>, Waiting)>> {
    let why = row.text("waits_for")?;
    Ok(time(row, "due_at")?.zip(why.map(|text| word(&text)).transpose()?))
}

/// What statistics need of a row of `runs`.
pub(super) fn ended(row: &impl Cells) -> Result<Ended> {
    Ok(Ended {
        format: sure_text(row, "format")?,
        lang: sure_text(row, "lang")?,
        client: row.text("client")?,
        outcome: word(&sure_text(row, "outcome")?)?,
        reason: row.text("reason")?.map(|text| word(&text)).transpose()?,
        submitted_at: sure_time(row, "submitted_at")?,
        started_at: sure_time(row, "started_at")?,
        finished_at: sure_time(row, "finished_at")?,
        bytes: size(row, "bytes")?,
        peak_memory: size(row, "peak_memory")?,
        cpu_millis: size(row, "cpu_millis")?,
    })
}

fn size(row: &impl Cells, column: &str) -> Result<Option<u64>> {
    Ok(row.int(column)?.map(i64::unsigned_abs))
}

/// A row of `runs`.
pub(super) fn run(row: &impl Cells) -> Result<Run> {
    Ok(Run {
        token: sure_text(row, "token")?,
        job_id: sure_int(row, "job_id")?,
        key: key(row)?,
        filename: sure_text(row, "filename")?,
        queue: sure_text(row, "queue")?,
        client: row.text("client")?,
        meta: row.text("meta")?,
        outcome: word(&sure_text(row, "outcome")?)?,
        reason: row.text("reason")?.map(|text| word(&text)).transpose()?,
        detail: row.text("detail")?,
        submitted_at: sure_time(row, "submitted_at")?,
        started_at: sure_time(row, "started_at")?,
        finished_at: sure_time(row, "finished_at")?,
        published_at: time(row, "published_at")?,
        measured: Measured {
            bytes: size(row, "bytes")?,
            exit_code: small(row, "exit_code")?,
            signal: small(row, "signal")?,
            peak_memory: size(row, "peak_memory")?,
            cpu_millis: size(row, "cpu_millis")?,
        },
        fingerprint: row.text("fingerprint")?,
    })
}

/// A row of `deliveries`.
pub(super) fn delivery(row: &impl Cells) -> Result<Delivery> {
    Ok(Delivery {
        id: sure_int(row, "id")?,
        listener: sure_text(row, "listener")?,
        job_id: sure_int(row, "job_id")?,
        key: key(row)?,
        filename: sure_text(row, "filename")?,
        client: row.text("client")?,
        meta: row.text("meta")?,
        attempts: counter(row, "attempts")?,
        outcome: word(&sure_text(row, "outcome")?)?,
        reason: row.text("reason")?.map(|text| word(&text)).transpose()?,
        detail: row.text("detail")?,
        happened_at: sure_time(row, "happened_at")?,
        since: sure_time(row, "since")?,
        due_at: time(row, "due_at")?,
        tries: counter(row, "tries")?,
        error: row.text("error")?,
    })
}
