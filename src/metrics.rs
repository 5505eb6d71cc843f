//! `metrics`: the state of the queue for Prometheus, counted at each call. Labels are names of the configuration and fixed
//! words, so that no title, client or forgotten format makes a series of its own.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use prometheus::{GaugeVec, Opts, Registry, TextEncoder};

use crate::bind::Home;
use crate::clock;
use crate::dispatch;
use crate::gates;
use crate::health;
use crate::job::Outcome;
use crate::stats::{Dimension, Spread, Stats};
use crate::store::{Store, Tally};

/// Over how long runs are counted.
const WINDOW: Duration = Duration::from_secs(3600);

/// The label of queues and formats that are not configured any more.
const OTHER: &str = "other";

/// Everything, in the text format.
///
/// # Errors
/// The queue cannot be read.
pub fn text(home: &Home) -> Result<String> {
    let now = clock::now();
    let sheet = Sheet(Registry::new_custom(Some("export_queue".to_owned()), None)?);
    let build = sheet.gauge("build_info", "The version of the program, always 1.", &["version"])?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    let findings = sheet.gauge("health_findings", "Lines that `export-queue health` prints now.", &[])?;
    findings.with_label_values::<&str>(&[]).set(health::findings(home)?.len() as f64);
    if let Some(free) = gates::free_disk(&home.layout.cache) {
        let gauge = sheet.gauge("cache_free_bytes", "Free bytes on the disk of the cache.", &[])?;
        gauge.with_label_values::<&str>(&[]).set(free as f64);
    }
    if let Some(last) = dispatch::last_tick(&home.layout.tick())? {
        let gauge = sheet.gauge("last_dispatch_timestamp_seconds", "When the last tick was.", &[])?;
        gauge.with_label_values::<&str>(&[]).set(last.timestamp_millis() as f64 / 1000.0);
    }
    if let Some(store) = home.open_to_read()? {
        queues(&sheet, home, &*store, now)?;
        runs(&sheet, home, &*store, now)?;
    }
    Ok(TextEncoder::new().encode_to_string(&sheet.0.gather())?)
}

/// The gauges that were made.
struct Sheet(Registry);

impl Sheet {
    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }
}

fn queues(sheet: &Sheet, home: &Home, store: &dyn Store, now: DateTime<Utc>) -> Result<()> {
    let jobs = sheet.gauge("jobs", "Jobs by queue and state; those due are among the queued.", &["queue", "state"])?;
    let oldest = sheet.gauge("oldest_queued_seconds", "Age of the oldest waiting job.", &["queue"])?;
    let slots = sheet.gauge("slots", "Slots in force.", &["queue"])?;
    let paused = sheet.gauge("paused", "1 while the queue is paused.", &["queue"])?;
    for (name, queue) in &home.config.queue {
        slots.with_label_values(&[name]).set(f64::from(queue.slots));
        paused.with_label_values(&[name]).set(if store.pause_of(name)?.is_some() { 1.0 } else { 0.0 });
        for (state, count) in states(&Tally::default()) {
            jobs.with_label_values(&[name.as_str(), state]).set(count);
        }
    }
    for tally in store.tally(now)? {
        let queue = if home.config.queue.contains_key(&tally.queue) { &tally.queue } else { OTHER };
        for (state, count) in states(&tally) {
            jobs.with_label_values(&[queue, state]).add(count);
        }
        if let Some(age) = tally.oldest.and_then(|oldest| (now - oldest).to_std().ok()) {
            let gauge = oldest.with_label_values(&[queue]);
            gauge.set(gauge.get().max(age.as_secs_f64()));
        }
    }
    Ok(())
}

fn states(tally: &Tally) -> [(&'static str, f64); 4] {
    [("queued", tally.queued), ("due", tally.due), ("started", tally.started), ("failed", tally.failed)]
        .map(|(state, count)| (state, count as f64))
}

fn runs(sheet: &Sheet, home: &Home, store: &dyn Store, now: DateTime<Utc>) -> Result<()> {
    let counts = sheet.gauge("recent_runs", "Runs that ended within the last hour.", &["format", "outcome"])?;
    let took = sheet.gauge("recent_run_seconds", "How long exports of the last hour took.", &["format", "quantile"])?;
    let waited =
        sheet.gauge("recent_wait_seconds", "How long exports of the last hour waited.", &["format", "quantile"])?;
    let mut stats = Stats::by(&[Dimension::Format]);
    store.ended(now - WINDOW, &mut |mut run| {
        if !home.config.format.contains_key(&run.format) {
            OTHER.clone_into(&mut run.format);
        }
        stats.add(&run);
    })?;
    for figures in stats.figures() {
        let format = figures.group[0].as_str();
        for outcome in Outcome::ALL {
            counts.with_label_values(&[format, outcome.text()]).set(figures.count(*outcome) as f64);
        }
        spread(&took, format, figures.took);
        spread(&waited, format, figures.waited);
    }
    Ok(())
}

fn spread(gauge: &GaugeVec, format: &str, spread: Option<Spread>) {
    let quantiles = spread.map(|spread| [("0.5", spread.p50), ("0.95", spread.p95), ("1", spread.max)]);
    for (quantile, time) in quantiles.into_iter().flatten() {
        gauge.with_label_values(&[format, quantile]).set(time.as_secs_f64());
    }
}
