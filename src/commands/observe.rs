//! Commands that only look: figures of the past, what is wrong now, and what goes on.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Start, operate};
use crate::bind::Home;
use crate::clock;
use crate::exit::Exit;
use crate::exporter::plain;
use crate::health;
use crate::job::State;
use crate::metrics;
use crate::output::{self, QueueRow};
use crate::stats::{Dimension, Stats};
use crate::store::Filter;

/// How many running exports a look of `watch` shows.
const SHOWN: u32 = 20;

/// Moves to the upper left corner and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn stats(start: &Start, since: Duration, by: &[Dimension], csv: bool) -> Result<Exit> {
    let home = start.home()?;
    let mut stats = Stats::by(by);
    if let Some(store) = home.open_to_read()? {
        store.ended(clock::now() - since, &mut |run| stats.add(&run))?;
    }
    let figures = stats.figures();
    if start.global.json {
        output::say_all(figures.iter().map(|figures| output::figures_json(by, figures)))?;
    } else if csv {
        output::say(output::figures_csv(by, &figures)?.trim_end())?;
    } else if !figures.is_empty() {
        let names = by.iter().map(|dimension| dimension.text());
        let header: Vec<&str> = names.chain(output::FIGURES.iter().copied()).collect();
        output::say(&output::table(&header, figures.iter().map(output::figures_row).collect()))?;
    }
    Ok(Exit::Done)
}

pub(super) fn health(start: &Start) -> Result<Exit> {
    let findings = health::findings(&start.home()?)?;
    output::say_all(findings.iter().map(|finding| {
        if start.global.json {
            serde_json::json!({"schema": 1, "about": finding.about, "message": finding.message}).to_string()
        } else {
            format!("{}: {}", finding.about, plain(&finding.message))
        }
    }))?;
    Ok(if findings.is_empty() { Exit::Done } else { Exit::Unexpected })
}

pub(super) fn metrics(start: &Start, output: Option<&Path>) -> Result<Exit> {
    let text = metrics::text(&start.home()?)?;
    match output {
        None => {
            output::say(text.trim_end())?;
        }
        Some(path) => replace(path, &text).with_context(|| format!("writing {}", path.display()))?,
    }
    Ok(Exit::Done)
}

/// A collector that reads meanwhile sees the old text or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(".metrics").permissions(mode).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Shows the queues again and again until nobody reads any more: a table on a terminal, else a line for each queue that
/// changed.
pub(super) fn watch(start: &Start, interval: Duration) -> Result<Exit> {
    let home = start.home()?;
    let is_screen = io::stdout().is_terminal() && !start.global.json;
    let mut shown: Vec<QueueRow> = Vec::new();
    loop {
        let rows = operate::queue_rows(&home)?;
        if is_screen {
            output::say(&format!("{CLEAR}{}", screen(&home, &rows)?))?;
        } else {
            let changed = rows.iter().filter(|row| !shown.iter().any(|old| old.is_like(row)));
            output::say_all(changed.map(|row| {
                if start.global.json { row.json() } else { format!("{}  {}", output::rfc3339(row.now), row.line()) }
            }))?;
            shown = rows;
        }
        if is_over(interval)? {
            return Ok(Exit::Done);
        }
    }
}

fn screen(home: &Home, rows: &[QueueRow]) -> Result<String> {
    let now = clock::now();
    let queues = output::table(output::QUEUES, rows.iter().map(QueueRow::row).collect());
    let filter = Filter { state: Some(State::Started), limit: Some(SHOWN), ..Filter::default() };
    let running = home.open_to_read()?.map(|store| store.list(&filter)).transpose()?.unwrap_or_default();
    let jobs = output::table(output::JOBS, running.iter().map(|job| output::job_row(job, now)).collect());
    Ok(format!("{}\n\n{queues}\n\n{jobs}", output::rfc3339(now)))
}

/// Lets some time pass; true when whoever reads standard output has gone.
fn is_over(interval: Duration) -> Result<bool> {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    match poll(&mut fds, Some(&Timespec::try_from(interval)?)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)),
        Err(error) => Err(error).context("waiting for the next look"),
    }
}
