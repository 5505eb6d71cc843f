//! What people and programs read: the status object, one line of text, tables. Output is data on standard output; a reader
//! that went away is no error.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::exporter::plain;
use crate::job::{Job, Outcome, Phase, Run};
use crate::request::{Answer, Refused};
use crate::stats::{Dimension, Figures};
use crate::store::{Delivery, Seen, Tally};

/// The head of the table of queues.
pub const QUEUES: &[&str] = &["queue", "queued", "due", "started", "failed", "slots", "state", "oldest"];

/// The head of the table of jobs.
pub const JOBS: &[&str] = &["id", "state", "title", "lang", "format", "queue", "since", "note"];

/// The head of the table of statistics, after the names of what the runs are grouped by.
pub const FIGURES: &[&str] =
    &["runs", "ready", "failed", "again", "took p50", "p95", "max", "waited p50", "p95", "size", "cpu", "memory"];

/// Prints a line of data; false when nobody reads any more, which is no error.
///
/// # Errors
/// The data cannot be written although somebody may want it: a full disk, say.
pub fn say(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error).context("writing to standard output"),
    }
}

/// Prints lines of data until all are printed or nobody reads any more.
///
/// # Errors
/// As [`say`].
pub fn say_all(lines: impl IntoIterator<Item = String>) -> Result<()> {
    for line in lines {
        if !say(&line)? {
            break;
        }
    }
    Ok(())
}

/// Whether an error says that standard output was closed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(rustix::io::Errno::BADF.raw_os_error())
}

/// A time as front ends read it.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Bytes for people: powers of 1024.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit < units.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", units[unit]) } else { format!("{value:.0} {}", units[unit]) }
}

/// The status object, exactly as front ends lean on it: every field is always there.
#[derive(Debug, Serialize)]
struct StatusObject<'a> {
    schema: u32,
    title: &'a str,
    lang: &'a str,
    font: &'a str,
    format: &'a str,
    options: &'a std::collections::BTreeMap<String, String>,
    filename: &'a str,
    state: &'a str,
    reason: Option<&'a str>,
    detail: Option<&'a str>,
    path: Option<String>,
    bytes: Option<u64>,
    published_at: Option<String>,
    expires_at: Option<String>,
    id: Option<i64>,
    queue: &'a str,
    position: Option<u32>,
    ahead: Option<u32>,
    eta_seconds: Option<u64>,
    eta_seconds_max: Option<u64>,
    progress: Option<&'a str>,
    message: Option<&'a str>,
    submitted_at: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    elapsed_seconds: Option<f64>,
    deadline_at: Option<String>,
    attempts: u32,
    interruptions: u32,
    retry_after_seconds: Option<u64>,
    poll_after_seconds: Option<u64>,
    meta: Option<Value>,
}

fn state_of(answer: &Answer) -> &'static str {
    if answer.file.is_some() {
        return "ready";
    }
    if answer.refused.is_some() {
        return "absent";
    }
    answer.job.as_ref().map_or("absent", |job| job.state().text())
}

fn reason_of(answer: &Answer) -> Option<&'static str> {
    match (&answer.refused, answer.job.as_ref().map(|job| &job.phase)) {
        (Some(Refused::QueueFull), _) => Some("queue_full"),
        (Some(Refused::ClientLimit), _) => Some("client_limit"),
        (Some(Refused::Denied(_)), _) => Some("denied"),
        (None, Some(Phase::Failed { reason, .. })) => Some(reason.text()),
        (None, Some(Phase::Queued { .. })) if answer.file.is_none() => answer.waiting.map(crate::job::Waiting::text),
        (None, _) => None,
    }
}

fn message_of(answer: &Answer) -> Option<&str> {
    match &answer.refused {
        Some(Refused::Denied(message)) => Some(message),
        _ => answer.message.as_deref(),
    }
}

/// The status object as one line of JSON.
pub fn status_json(answer: &Answer) -> String {
    let job = answer.job.as_ref();
    let file = answer.file.as_ref();
    let (started, deadline, progress) = match job.map(|job| &job.phase) {
        Some(Phase::Started { since, deadline, progress, .. }) => (Some(*since), Some(*deadline), progress.as_deref()),
        _ => (None, None, None),
    };
    let (detail, finished) = match job.map(|job| &job.phase) {
        Some(Phase::Failed { detail, at, .. }) => (Some(detail.as_str()), Some(*at)),
        _ => (None, None),
    };
    let elapsed = started.and_then(|since| (answer.now - since).to_std().ok());
    let object = StatusObject {
        schema: 1,
        title: &answer.key.title,
        lang: &answer.key.lang,
        font: &answer.key.font,
        format: &answer.key.format,
        options: &answer.key.options,
        filename: &answer.filename,
        state: state_of(answer),
        reason: reason_of(answer),
        detail,
        path: file.map(|(facts, _)| facts.path.to_string_lossy().into_owned()),
        bytes: file.map(|(facts, _)| facts.bytes),
        published_at: file.map(|(facts, _)| rfc3339(facts.dates.modified)),
        expires_at: file.and_then(|(_, until)| until.map(rfc3339)),
        id: job.map(|job| job.id),
        queue: &answer.queue,
        position: answer.ahead.filter(|ahead| *ahead < 1000).map(|ahead| ahead + 1),
        ahead: answer.ahead,
        eta_seconds: answer.eta.map(|(soonest, _)| soonest),
        eta_seconds_max: answer.eta.map(|(_, latest)| latest),
        progress,
        message: message_of(answer),
        submitted_at: job.map(|job| rfc3339(job.submitted_at)),
        started_at: started.map(rfc3339),
        finished_at: finished.map(rfc3339),
        elapsed_seconds: elapsed.map(|elapsed| (elapsed.as_secs_f64() * 10.0).round() / 10.0),
        deadline_at: deadline.map(rfc3339),
        attempts: job.map_or(0, |job| job.attempts),
        interruptions: job.map_or(0, |job| job.interruptions),
        retry_after_seconds: answer.retry_after.map(|left| left.as_secs() + u64::from(left.subsec_nanos() > 0)),
        poll_after_seconds: answer.poll_after,
        meta: answer.meta.as_deref().and_then(|meta| serde_json::from_str(meta).ok()),
    };
    // Strings, numbers and maps with string keys always have a JSON form.
    serde_json::to_string(&object).unwrap_or_default()
}

/// One line for people.
pub fn status_line(answer: &Answer) -> String {
    let key = &answer.key;
    let name = format!("{} ({}, {}, {})", plain(&key.title), key.lang, key.font, key.format);
    let mut parts = vec![format!("{}  {name}", state_of(answer))];
    if let Some((facts, until)) = &answer.file {
        parts.push(size(facts.bytes));
        parts.extend(until.map(|until| format!("until {}", until.format("%H:%M:%S"))));
        return parts.join("  ");
    }
    parts.extend(reason_of(answer).map(str::to_owned));
    match answer.job.as_ref().map(|job| &job.phase) {
        Some(Phase::Queued { .. }) => parts.extend(answer.ahead.map(|ahead| format!("{ahead} ahead"))),
        Some(Phase::Started { since, progress, .. }) => {
            parts.push(format!("for {} s", (answer.now - *since).num_seconds().max(0)));
            parts.extend(progress.clone());
        }
        Some(Phase::Failed { detail, .. }) => parts.push(plain(detail)),
        None => {}
    }
    parts.extend(message_of(answer).map(plain));
    parts.extend(answer.retry_after.map(|left| format!("may be asked for again in {} s", left.as_secs() + 1)));
    parts.join("  ")
}

/// A status line whose first word, the state, has the colour of its answer.
pub fn painted(line: &str, exit: Exit) -> String {
    let color = match exit {
        Exit::Done => 32,
        Exit::Queued | Exit::Started => 33,
        _ => 31,
    };
    let (state, rest) = line.split_once("  ").unwrap_or((line, ""));
    format!("\x1b[{color}m{state}\x1b[0m  {rest}")
}

/// An error as one line of JSON.
pub fn error_json(code: u8, message: &str) -> String {
    json!({"schema": 1, "error": {"code": code, "message": message}}).to_string()
}

/// A table with aligned columns and no lines.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A job as one line of JSON.
pub fn job_json(job: &Job) -> String {
    let key = &job.key;
    let mut object = json!({
        "schema": 1, "id": job.id, "title": key.title, "lang": key.lang, "font": key.font, "format": key.format,
        "options": key.options, "filename": job.filename, "state": job.state(), "queue": job.queue,
        "client": job.client, "priority": job.priority, "submitted_at": rfc3339(job.submitted_at),
        "attempts": job.attempts, "interruptions": job.interruptions, "reason": null, "detail": null,
        "started_at": null, "finished_at": null, "slot": null, "progress": null,
    });
    match &job.phase {
        Phase::Queued { later } => object["reason"] = json!(later.map(|(_, why)| why)),
        Phase::Started { slot, since, progress, .. } => {
            object["slot"] = json!(slot);
            object["started_at"] = json!(rfc3339(*since));
            object["progress"] = json!(progress);
        }
        Phase::Failed { reason, detail, at, .. } => {
            object["reason"] = json!(reason);
            object["detail"] = json!(detail);
            object["finished_at"] = json!(rfc3339(*at));
        }
    }
    object.to_string()
}

/// A job as a row of the table of `list`.
pub fn job_row(job: &Job, now: DateTime<Utc>) -> Vec<String> {
    let (since, note) = match &job.phase {
        Phase::Queued { later } => (job.submitted_at, later.map(|(_, why)| why.to_string()).unwrap_or_default()),
        Phase::Started { since, progress, .. } => (*since, progress.clone().unwrap_or_default()),
        Phase::Failed { reason, at, .. } => (*at, reason.to_string()),
    };
    let age = format!("{} s", (now - since).num_seconds().max(0));
    vec![
        job.id.to_string(),
        job.state().to_string(),
        plain(&job.key.title),
        job.key.lang.clone(),
        job.key.format.clone(),
        job.queue.clone(),
        age,
        note,
    ]
}

/// A run as one line of JSON.
pub fn run_json(run: &Run) -> String {
    let (key, measured) = (&run.key, &run.measured);
    json!({
        "schema": 1, "run": run.token, "job_id": run.job_id, "title": key.title, "lang": key.lang, "font": key.font,
        "format": key.format, "options": key.options, "filename": run.filename, "queue": run.queue,
        "client": run.client, "outcome": run.outcome, "reason": run.reason, "detail": run.detail,
        "submitted_at": rfc3339(run.submitted_at), "started_at": rfc3339(run.started_at),
        "finished_at": rfc3339(run.finished_at), "published_at": run.published_at.map(rfc3339),
        "bytes": measured.bytes, "exit_code": measured.exit_code, "signal": measured.signal,
        "peak_memory": measured.peak_memory, "cpu_seconds": measured.cpu_millis.map(|millis| millis as f64 / 1000.0),
        "meta": run.meta.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()),
    })
    .to_string()
}

/// A run as a row of the table of `history`.
pub fn run_row(run: &Run) -> Vec<String> {
    let took = (run.finished_at - run.started_at).num_milliseconds().max(0) as f64 / 1000.0;
    vec![
        run.finished_at.format("%Y-%m-%d %H:%M:%S").to_string(),
        run.outcome.to_string(),
        plain(&run.key.title),
        run.key.lang.clone(),
        run.key.format.clone(),
        format!("{took:.1} s"),
        run.measured.bytes.map(size).unwrap_or_default(),
        run.measured.peak_memory.map(size).unwrap_or_default(),
        run.reason.map(|reason| reason.to_string()).unwrap_or_default(),
    ]
}

/// The figures of a group of runs as named values, in the order of the columns.
fn figures_object(by: &[Dimension], figures: &Figures) -> serde_json::Map<String, Value> {
    let mut object = serde_json::Map::new();
    for (dimension, name) in by.iter().zip(&figures.group) {
        object.insert(dimension.text().to_owned(), json!(name));
    }
    object.insert("runs".to_owned(), json!(figures.runs));
    for outcome in Outcome::ALL {
        object.insert(outcome.text().to_owned(), json!(figures.count(*outcome)));
    }
    for (name, spread) in [("took", figures.took), ("waited", figures.waited)] {
        let times = [("p50", spread.map(|s| s.p50)), ("p95", spread.map(|s| s.p95)), ("max", spread.map(|s| s.max))];
        for (quantile, time) in times {
            object.insert(format!("{name}_seconds_{quantile}"), json!(time.map(|time| time.as_secs_f64())));
        }
    }
    object.insert("bytes".to_owned(), json!(figures.bytes));
    object.insert("cpu_seconds".to_owned(), json!(figures.cpu.as_secs_f64()));
    object.insert("peak_memory".to_owned(), json!(figures.peak_memory));
    object
}

/// The figures of a group of runs as one line of JSON.
pub fn figures_json(by: &[Dimension], figures: &Figures) -> String {
    let mut object = serde_json::Map::from_iter([("schema".to_owned(), json!(1))]);
    object.append(&mut figures_object(by, figures));
    Value::Object(object).to_string()
}

/// Statistics as comma-separated values with a head.
///
/// # Errors
/// None that memory does not give.
pub fn figures_csv(by: &[Dimension], figures: &[Figures]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let nothing = Figures { group: by.iter().map(|_| String::new()).collect(), ..Figures::default() };
    writer.write_record(figures_object(by, &nothing).keys())?;
    for figures in figures {
        writer.write_record(figures_object(by, figures).values().map(|value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        }))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The figures of a group of runs as a row of the table of `stats`.
pub fn figures_row(figures: &Figures) -> Vec<String> {
    let count = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| figures.count(*outcome)).sum::<u64>().to_string();
    let seconds = |time: Option<Duration>| time.map(|time| format!("{:.1} s", time.as_secs_f64())).unwrap_or_default();
    let (took, waited) = (figures.took, figures.waited);
    let mut row: Vec<String> = figures.group.iter().map(|name| plain(name)).collect();
    row.extend([
        figures.runs.to_string(),
        count(&[Outcome::Ready]),
        count(&[Outcome::FailedTimeout, Outcome::FailedUnknown]),
        count(&[Outcome::Retried, Outcome::Interrupted, Outcome::Stopped]),
        seconds(took.map(|took| took.p50)),
        seconds(took.map(|took| took.p95)),
        seconds(took.map(|took| took.max)),
        seconds(waited.map(|waited| waited.p50)),
        seconds(waited.map(|waited| waited.p95)),
        size(figures.bytes),
        seconds(Some(figures.cpu)),
        size(figures.peak_memory),
    ]);
    row
}

/// A delivery as one line of JSON.
pub fn delivery_json(delivery: &Delivery) -> String {
    let key = &delivery.key;
    json!({
        "schema": 1, "id": delivery.id, "listener": delivery.listener, "state": delivery.outcome,
        "reason": delivery.reason, "detail": delivery.detail, "job_id": delivery.job_id, "title": key.title,
        "lang": key.lang, "font": key.font, "format": key.format, "options": key.options, "filename": delivery.filename,
        "client": delivery.client, "ended_at": rfc3339(delivery.happened_at), "given_up": delivery.due_at.is_none(),
        "due_at": delivery.due_at.map(rfc3339), "tries": delivery.tries, "error": delivery.error,
        "meta": delivery.meta.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()),
    })
    .to_string()
}

/// A delivery as a row of the table of `deliveries`.
pub fn delivery_row(delivery: &Delivery) -> Vec<String> {
    let time = |time: DateTime<Utc>| time.format("%Y-%m-%d %H:%M:%S").to_string();
    vec![
        delivery.id.to_string(),
        time(delivery.happened_at),
        delivery.listener.clone(),
        delivery.outcome.to_string(),
        plain(&delivery.key.title),
        delivery.key.format.clone(),
        delivery.tries.to_string(),
        delivery.due_at.map_or_else(|| "given up".to_owned(), time),
        plain(delivery.error.as_deref().unwrap_or("")),
    ]
}

/// What a queue holds, for people and programs.
#[derive(Debug, Clone)]
pub struct QueueRow {
    /// What is counted.
    pub tally: Tally,
    /// Slots in force; 0 for a queue that is not configured any more.
    pub slots: u32,
    /// Since when it is paused.
    pub paused: Option<DateTime<Utc>>,
    /// When this was true.
    pub now: DateTime<Utc>,
}

/// A node as one line of JSON.
pub fn node_json(seen: &Seen) -> String {
    let node = &seen.node;
    json!({
        "schema": 1, "id": node.id, "name": node.name, "version": node.version, "slots": node.slots, "lanes": node.lanes,
        "started": seen.started, "first_seen_at": rfc3339(seen.first), "last_seen_at": rfc3339(seen.last),
        "silent_seconds": seen.silent.as_secs(),
    })
    .to_string()
}

/// A node as a row of the table of `nodes`.
pub fn node_row(seen: &Seen) -> Vec<String> {
    let node = &seen.node;
    let (slots, started) = (node.slots.to_string(), seen.started.to_string());
    let silent = format!("{} s ago", seen.silent.as_secs());
    vec![node.name.clone(), node.id.clone(), node.version.clone(), slots, started, silent]
}

impl QueueRow {
    fn oldest_seconds(&self) -> Option<i64> {
        self.tally.oldest.map(|oldest| (self.now - oldest).num_seconds().max(0))
    }

    /// As one line of JSON.
    pub fn json(&self) -> String {
        let tally = &self.tally;
        json!({
            "schema": 1, "queue": tally.queue, "queued": tally.queued, "due": tally.due, "started": tally.started,
            "failed": tally.failed, "slots_used": tally.started, "slots": self.slots,
            "paused_at": self.paused.map(rfc3339), "oldest_seconds": self.oldest_seconds(),
        })
        .to_string()
    }

    /// Whether it says the same, whatever the time.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.tally, self.slots, self.paused) == (&other.tally, other.slots, other.paused)
    }

    /// As a line for people that tells of a change.
    pub fn line(&self) -> String {
        let Tally { queue, queued, due, started, failed, .. } = &self.tally;
        let paused = if self.paused.is_some() { ", paused" } else { "" };
        let slots = self.slots;
        format!("{queue}: {queued} queued, {due} due, {started} of {slots} started, {failed} failed{paused}")
    }

    /// As a row of the table of `queues`.
    pub fn row(&self) -> Vec<String> {
        let tally = &self.tally;
        let numbers = [tally.queued, tally.due, tally.started, tally.failed];
        let mut row = vec![tally.queue.clone()];
        row.extend(numbers.map(|number| number.to_string()));
        row.push(format!("{}/{}", tally.started, self.slots));
        row.push(if self.paused.is_some() { "paused".to_owned() } else { String::new() });
        row.push(self.oldest_seconds().map(|age| format!("{age} s")).unwrap_or_default());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let table = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (122_880, "120 KiB"), (5 << 30, "5.0 GiB")];
        for (bytes, text) in table {
            assert_eq!(size(bytes), text);
        }
    }
}
