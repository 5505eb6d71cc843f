//! Commands that change what many jobs do.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use serde_json::json;

use super::Start;
use crate::bind::Home;
use crate::clock;
use crate::exit::{Exit, Refusal};
use crate::job::State;
use crate::output;
use crate::request::{self, Counted};
use crate::store::{RetriedAll, Store};

/// How often is looked whether something still runs.
const LOOK: Duration = Duration::from_millis(200);

/// The longest message of a pause, in bytes.
const MAX_MESSAGE: usize = 1000;

/// The queues that are meant: the one that is named, which must be configured or paused, else all.
fn queues_of(home: &Home, store: &dyn Store, named: Option<&str>) -> Result<Vec<String>> {
    let mut known: Vec<String> = home.config.queue.keys().cloned().chain(store.paused()?).collect();
    known.sort();
    known.dedup();
    match named {
        None => Ok(known),
        Some(queue) if known.iter().any(|name| name == queue) => Ok(vec![queue.to_owned()]),
        Some(queue) => Err(Refusal::usage(request::unknown_queue(&home.config, queue))),
    }
}

fn say(start: &Start, queue: &str, is_paused: bool, text: &str) -> Result<()> {
    let object = json!({"schema": 1, "queue": queue, "paused": is_paused});
    let text = if start.global.json { object.to_string() } else { format!("queue {queue}: {text}") };
    output::say(&text).map(drop)
}

pub(super) fn request_all(start: &Start, path: &Path) -> Result<Exit> {
    let home = start.home()?;
    let counted = if path == Path::new("-") {
        let bar = bar(start, None);
        request::request_all(&home, &mut BufReader::new(bar.wrap_read(io::stdin().lock())))
    } else {
        let file = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes, file) = file.map_err(|error| Refusal::usage(format!("cannot read {}: {error}", path.display())))?;
        let bar = bar(start, Some(bytes));
        request::request_all(&home, &mut BufReader::new(bar.wrap_read(file)))
    }?;
    let Counted { accepted, joined, ready, failed } = counted;
    let object = json!({"accepted": accepted, "joined": joined, "ready": ready, "failed": failed});
    output::say(&object.to_string())?;
    Ok(Exit::Done)
}

/// How far a batch has been read, on a terminal only; gone when it is dropped.
fn bar(start: &Start, bytes: Option<u64>) -> ProgressBar {
    // Where somebody types the lines, they see how far they are.
    let is_hidden = start.global.quiet || (bytes.is_none() && io::stdin().is_terminal());
    let target = if is_hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(bytes, target).with_finish(ProgressFinish::AndClear);
    let template =
        if bytes.is_some() { "reading {wide_bar} {bytes}/{total_bytes}" } else { "reading {spinner} {bytes}" };
    // Both templates are sound; were they not, there is a default one.
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

pub(super) fn pause(start: &Start, queue: Option<&str>, message: Option<&str>, wait: bool) -> Result<Exit> {
    if message.is_some_and(|message| message.len() > MAX_MESSAGE) {
        return Err(Refusal::usage(format!("the message is longer than {MAX_MESSAGE} bytes")));
    }
    let home = start.home()?;
    let mut store = home.open_to_ask()?;
    let queues = queues_of(&home, &*store, queue)?;
    for queue in &queues {
        store.pause(queue, message, clock::now())?;
    }
    for queue in &queues {
        while wait && store.count_started(queue)? > 0 {
            thread::sleep(LOOK);
        }
        say(start, queue, true, "paused")?;
    }
    Ok(Exit::Done)
}

pub(super) fn resume(start: &Start, queue: Option<&str>) -> Result<Exit> {
    let home = start.home()?;
    let mut store = home.open_to_ask()?;
    for queue in queues_of(&home, &*store, queue)? {
        let was_paused = store.resume(&queue)?;
        say(start, &queue, false, if was_paused { "goes on" } else { "was not paused" })?;
    }
    request::poke(&home)?;
    Ok(Exit::Done)
}

pub(super) fn retry_failed(start: &Start) -> Result<Exit> {
    let home = start.home()?;
    let RetriedAll { queued, skipped } = home.open_to_ask()?.retry_failed(clock::now())?;
    request::poke(&home)?;
    if start.global.json {
        output::say(&json!({"schema": 1, "queued": queued, "skipped": skipped}).to_string())?;
    } else {
        output::say(&format!("queued {queued} failed jobs again"))?;
        if skipped > 0 {
            start.tell(&format!("{skipped} stay failed: processes of them are left that KILL does not end"));
        }
    }
    Ok(Exit::Done)
}

pub(super) fn purge(start: &Start, state: State, older_than: Duration, dry_run: bool) -> Result<Exit> {
    match state {
        State::FailedTimeout | State::FailedUnknown => {}
        State::Queued | State::Started => {
            return Err(Refusal::usage("only failed jobs are purged; `cancel` ends others"));
        }
    }
    let home = start.home()?;
    let purged = home.open_to_ask()?.purge(state, clock::now() - older_than, dry_run)?;
    let verb = if dry_run { "would forget" } else { "forgot" };
    let object = json!({"schema": 1, "dry_run": dry_run, "purged": purged});
    output::say(&if start.global.json { object.to_string() } else { format!("{verb} {purged} failed jobs") })?;
    Ok(Exit::Done)
}
