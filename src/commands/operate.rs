//! Commands about the whole queue.

use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::Start;
use crate::bind::Home;
use crate::clock;
use crate::dispatch::{self, Orders};
use crate::exit::{Exit, Refusal};
use crate::output::{self, QueueRow};
use crate::request;
use crate::retention::Wish;
use crate::store::{Filter, Tally};
use crate::sweep::{self, Report};

pub(super) fn dispatch(start: &Start, for_time: Option<Duration>, wait: bool, dry_run: bool) -> Result<Exit> {
    let mut home = start.home()?;
    if dry_run {
        for line in dispatch::plan(&home)?.lines {
            output::say(&line)?;
        }
        return Ok(Exit::Done);
    }
    dispatch::dispatch(&mut home, Orders { for_time, wait }, &mut |message| {
        // Findings are what cron mails; whoever closed standard error does not want them.
        let _ = writeln!(std::io::stderr(), "export-queue: {message}");
    })
}

pub(super) fn sweep(
    start: &Start,
    dry_run: bool,
    older_than: Option<Duration>,
    all: bool,
    force: bool,
) -> Result<Exit> {
    if force && !all && older_than.is_none() {
        return Err(Refusal::usage("--force says how, not what: add --all or --older-than"));
    }
    let home = start.home()?;
    let mut store = home.open_as_owner()?;
    let older_than = if all { Some(Duration::ZERO) } else { older_than };
    let wish = Wish { older_than, force };
    let mut report = sweep::walk(&home, &mut *store, wish, dry_run, clock::now())?;
    if report.aged > 0 && !dry_run {
        let grace = home.cache.policy.grace;
        start.tell(&format!(
            "{} files are not handed out any more; they are deleted in {} s, when the last promise is over",
            report.aged,
            grace.as_secs()
        ));
        thread::sleep(grace + Duration::from_millis(50));
        let second = sweep::walk(&home, &mut *store, Wish::default(), false, clock::now())?;
        report =
            Report { aged: 0, deleted: report.deleted + second.deleted, bytes: report.bytes + second.bytes, ..second };
    }
    print_report(start, &report, dry_run)?;
    Ok(if report.trouble.is_empty() && !report.left_over { Exit::Done } else { Exit::TryLater })
}

fn print_report(start: &Start, report: &Report, dry_run: bool) -> Result<()> {
    if start.global.json {
        let object = serde_json::json!({
            "schema": 1, "dry_run": dry_run, "deleted": report.deleted, "bytes": report.bytes, "aged": report.aged,
            "trouble": report.trouble, "left_over": report.left_over,
        });
        output::say(&object.to_string())?;
        return Ok(());
    }
    let verb = if dry_run { "would delete" } else { "deleted" };
    output::say(&format!("{verb} {} files, {}", report.deleted, output::size(report.bytes)))?;
    if dry_run && report.aged > 0 {
        output::say(&format!("would take {} files out of ready and delete them one grace later", report.aged))?;
    }
    for trouble in &report.trouble {
        start.tell(trouble);
    }
    if report.left_over {
        start.tell("the cache lock was busy for too long: the rest is left to the next sweep");
    }
    Ok(())
}

pub(super) fn list(start: &Start, filter: &Filter) -> Result<Exit> {
    let home = start.home()?;
    let Some(store) = home.open_to_read()? else {
        return Ok(Exit::Done);
    };
    let jobs = store.list(filter)?;
    if start.global.json {
        output::say_all(jobs.iter().map(output::job_json))?;
    } else if !jobs.is_empty() {
        let now = clock::now();
        output::say(&output::table(output::JOBS, jobs.iter().map(|job| output::job_row(job, now)).collect()))?;
    }
    Ok(Exit::Done)
}

pub(super) fn deliveries(start: &Start, retry: Option<i64>) -> Result<Exit> {
    let home = start.home()?;
    if let Some(id) = retry {
        if !home.open_to_ask()?.retry_delivery(id, clock::now())? {
            return Err(Refusal::with(Exit::Absent, format!("there is no delivery {id}")));
        }
        request::poke(&home)?;
    }
    let Some(store) = home.open_to_read()? else {
        return Ok(Exit::Done);
    };
    let deliveries = store.deliveries()?;
    if start.global.json {
        output::say_all(deliveries.iter().map(output::delivery_json))?;
    } else if !deliveries.is_empty() {
        let header = ["id", "ended", "listener", "state", "title", "format", "tries", "next try", "error"];
        output::say(&output::table(&header, deliveries.iter().map(output::delivery_row).collect()))?;
    }
    Ok(Exit::Done)
}

pub(super) fn queues(start: &Start) -> Result<Exit> {
    let rows = queue_rows(&start.home()?)?;
    if start.global.json {
        output::say_all(rows.iter().map(QueueRow::json))?;
    } else {
        output::say(&output::table(output::QUEUES, rows.iter().map(QueueRow::row).collect()))?;
    }
    Ok(Exit::Done)
}

/// Every queue that is configured or holds jobs.
pub(super) fn queue_rows(home: &Home) -> Result<Vec<QueueRow>> {
    let now = clock::now();
    let store = home.open_to_read()?;
    let tallied = store.as_ref().map(|store| store.tally(now)).transpose()?.unwrap_or_default();
    let empty = |queue: &String| Tally { queue: queue.clone(), ..Tally::default() };
    let idle = home.config.queue.keys().filter(|queue| !tallied.iter().any(|tally| tally.queue == **queue)).map(empty);
    let mut tallies: Vec<Tally> = tallied.iter().cloned().chain(idle).collect();
    tallies.sort_by(|a, b| a.queue.cmp(&b.queue));
    let mut rows = Vec::new();
    for tally in tallies {
        let pause = store.as_ref().map(|store| store.pause_of(&tally.queue)).transpose()?.flatten();
        let slots = home.config.queue.get(&tally.queue).map_or(0, |queue| queue.slots);
        rows.push(QueueRow { tally, slots, paused: pause.map(|pause| pause.since), now });
    }
    Ok(rows)
}

pub(super) fn nodes(start: &Start) -> Result<Exit> {
    let home = start.home()?;
    let nodes = home.open_to_read()?.map(|store| store.nodes()).transpose()?.unwrap_or_default();
    if start.global.json {
        output::say_all(nodes.iter().map(output::node_json))?;
    } else if !home.is_shared() {
        start.tell("the queue is in SQLite: this machine is the only one");
    } else if !nodes.is_empty() {
        let header = ["node", "id", "version", "slots", "started", "seen"];
        output::say(&output::table(&header, nodes.iter().map(output::node_row).collect()))?;
    }
    Ok(Exit::Done)
}
