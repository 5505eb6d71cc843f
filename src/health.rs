//! `health`: what an operator should look at now; nothing when all is well.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};

use crate::bind::Home;
use crate::clock;
use crate::dispatch;
use crate::exporter;
use crate::gates;
use crate::job::{Ended, Failure, Outcome};
use crate::request;
use crate::store::Store;

/// Over how long failures are counted.
const WINDOW: Duration = Duration::from_secs(3600);

/// So many runs must have ended in that time for a share of failures to mean anything.
const MIN_RUNS: u64 = 10;

/// After how long without a walk through the cache, which is due each hour, something keeps it from being done.
const OVERDUE: Duration = Duration::from_secs(2 * 3600);

/// After how long something that could not be told is worth a look.
const UNTOLD: chrono::Duration = chrono::Duration::hours(1);

/// How long what was given up is named, counted like the day over which it was tried.
const GIVEN_UP: chrono::Duration = chrono::Duration::days(2);

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is concerned: a stable word.
    pub about: &'static str,
    /// What was found, one line.
    pub message: String,
}

/// Looks at everything; the gravest come first.
///
/// # Errors
/// The queue cannot be read.
pub fn findings(home: &Home) -> Result<Vec<Finding>> {
    let now = clock::now();
    let mut found = Vec::new();
    let mut find = |about: &'static str, message: String| found.push(Finding { about, message });
    let Some(store) = home.open_to_read()? else {
        find("database", "there is no queue yet: run `export-queue init`".to_owned());
        return Ok(found);
    };
    if request::is_undispatched(home, now)? {
        find(
            "dispatch",
            "nobody has dispatched for two minutes: is `export-queue dispatch` in the crontab?".to_owned(),
        );
    } else if let Some(age) = walk_overdue(home, now)? {
        find("sweep", format!("the cache was last walked {} ago", humantime::format_duration(age)));
    }
    for (name, format) in &home.config.format {
        let missing = exporter::missing(format);
        if !missing.is_empty() {
            find("exporter", format!("format {name}: {} is not installed", missing.join(", ")));
        }
    }
    for (name, queue) in &home.config.queue {
        for dir in [&home.layout.cache, &home.layout.state] {
            if gates::is_disk_low(queue, dir) {
                find(
                    "disk",
                    format!(
                        "queue {name} starts nothing: less than min_free_disk is left on the disk of {}",
                        dir.display()
                    ),
                );
            }
        }
    }
    queues(home, &*store, now, &mut find)?;
    find_failures(&*store, now, &mut find)?;
    find_untold(&*store, now, &mut find)?;
    Ok(found)
}

/// How long ago the cache was walked, if that is too long: ticks do it each hour.
fn walk_overdue(home: &Home, now: DateTime<Utc>) -> Result<Option<Duration>> {
    if !home.is_owner() {
        // The note lies in a directory of the owner's.
        return Ok(None);
    }
    let walked = dispatch::last_tick(&home.layout.walked())?;
    let age = walked.and_then(|walked| (now - walked).to_std().ok()).filter(|age| *age > OVERDUE);
    Ok(age.map(|age| Duration::from_secs(age.as_secs())))
}

/// Queues that are nearly full, not configured, or have slots that dead runs hold.
fn queues(
    home: &Home,
    store: &dyn Store,
    now: DateTime<Utc>,
    find: &mut dyn FnMut(&'static str, String),
) -> Result<()> {
    for tally in store.tally(now)? {
        let queue = &tally.queue;
        let Some(settings) = home.config.queue.get(queue) else {
            if tally.queued > 0 {
                find("queue", format!("{} jobs wait in queue {queue}, which is not configured any more", tally.queued));
            }
            continue;
        };
        if settings.max_queued > 0 && tally.queued >= settings.max_queued - settings.max_queued / 10 {
            find("queue", format!("queue {queue} holds {} of at most {} jobs", tally.queued, settings.max_queued));
        }
        let taken = u64::from(store.count_started(queue)?);
        if taken > tally.started {
            let held = taken - tally.started;
            find("slots", format!("{held} slots of queue {queue} are taken by processes that KILL does not end"));
        }
        for format in store.due_formats(queue)?.iter().filter(|format| !home.config.format.contains_key(*format)) {
            find("format", format!("jobs wait in queue {queue} for format {format}, which is not configured any more"));
        }
    }
    Ok(())
}

/// More than half of the last hour's exports failed.
fn find_failures(store: &dyn Store, now: DateTime<Utc>, find: &mut dyn FnMut(&'static str, String)) -> Result<()> {
    let (mut ready, mut failed) = (0_u64, BTreeMap::<&str, u64>::new());
    store.ended(now - WINDOW, &mut |run| match failure_of(&run) {
        Some(reason) => *failed.entry(reason.text()).or_default() += 1,
        None => ready += u64::from(run.outcome == Outcome::Ready),
    })?;
    let failures: u64 = failed.values().sum();
    if failures + ready >= MIN_RUNS && failures > ready {
        let most = failed.iter().max_by_key(|(_, count)| **count).map_or("", |(reason, _)| reason);
        find(
            "failures",
            format!("{failures} of {} exports failed within an hour, most of them {most}", failures + ready),
        );
    }
    Ok(())
}

/// Listeners that could not be told for long, or not at all.
fn find_untold(store: &dyn Store, now: DateTime<Utc>, find: &mut dyn FnMut(&'static str, String)) -> Result<()> {
    let mut untold = BTreeMap::<String, (u64, u64)>::new();
    for delivery in store.deliveries()? {
        let age = now - delivery.since;
        let is_given_up = delivery.due_at.is_none();
        if is_given_up && age < GIVEN_UP {
            untold.entry(delivery.listener).or_default().0 += 1;
        } else if !is_given_up && age > UNTOLD {
            untold.entry(delivery.listener).or_default().1 += 1;
        }
    }
    for (listener, (given_up, late)) in untold {
        let late = (late > 0).then(|| format!("{late} late by more than an hour"));
        let given_up = (given_up > 0).then(|| format!("{given_up} given up"));
        let counts: Vec<_> = late.into_iter().chain(given_up).collect();
        find("deliveries", format!("of what {listener} is to be told: {}", counts.join(", ")));
    }
    Ok(())
}

/// Why a run failed, where that may be a fault of the setup: books that are not there and wishes that were taken back are
/// not.
fn failure_of(run: &Ended) -> Option<Failure> {
    let is_ordinary = |reason: &Failure| {
        matches!(reason, Failure::SourceMissing | Failure::Cancelled | Failure::WaitExpired | Failure::BaseFailed)
    };
    match run.outcome {
        Outcome::FailedTimeout | Outcome::FailedUnknown => run.reason.filter(|reason| !is_ordinary(reason)),
        Outcome::Ready | Outcome::Retried | Outcome::Interrupted | Outcome::Stopped => None,
    }
}
