//! The one way back from any death: of a worker, of its exporter, of both, of the machine.
//!
//! Whoever holds a slot's lock knows that its last worker is dead. The record in the lock file names the run; its processes
//! are ended first, and only when they are gone are the row settled and the slot free. Holders that are alive but give no
//! sign of life are ended here too; that they are silent is a reason to end them, never a proof that they have ended.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::bind::{self, Home};
use crate::clock;
use crate::fault;
use crate::identity::Identity;
use crate::job::{Failure, Job, Outcome, Phase};
use crate::layout::SlotName;
use crate::lock::{self, Held, Reading, SILENCE};
use crate::process::{self, Trace};
use crate::rules::{self, Bounds, Fate};
use crate::store::{Again, FailureNote, Store};

/// How long processes may take to go after KILL.
pub const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// How long a tick waits for processes that are known not to die.
const KNOWN_UNDEAD: Duration = Duration::from_millis(200);

/// After how long a row that no slot names is looked at again.
const SECOND_LOOK: Duration = Duration::from_millis(300);

/// How long a tick takes over jobs of machines that are lost; the rest is left to the next.
const TAKE_OVER: Duration = Duration::from_secs(20);

/// How many lost jobs are taken from the database at a time.
const LOST_PAGE: u32 = 256;

/// What became of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// There was nothing to do, or it is done.
    Free,
    /// Processes of its last run do not die: the slot stays taken.
    Undead(Vec<Identity>),
}

/// Settles whatever the last holder of this slot left behind.
///
/// # Errors
/// The lock file or the database cannot be used; the record stays, and the next tick tries again.
pub fn recover(home: &Home, store: &mut dyn Store, slot: &Held) -> Result<Recovered> {
    let Reading::Record(record) = slot.left_behind()? else {
        return Ok(Recovered::Free);
    };
    let leader = record.leader.filter(|_| record.boot == process::boot_id());
    let mut left = Vec::new();
    for token in record.tokens() {
        if let Recovered::Undead(processes) = settle_run(home, store, token, leader)? {
            left.extend(processes);
        }
    }
    Ok(if left.is_empty() { Recovered::Free } else { Recovered::Undead(left) })
}

/// Ends what is left of a run whose worker is dead, then settles its row and removes its directory.
///
/// # Errors
/// As [`recover`].
pub fn settle_run(home: &Home, store: &mut dyn Store, token: &str, leader: Option<Identity>) -> Result<Recovered> {
    let row = store.find_by_token(token)?;
    let is_known = row.as_ref().is_some_and(|job| matches!(job.phase, Phase::Failed { .. }));
    fault::point("recover.before_kill")?;
    let log = home.layout.log(token);
    let trace = Trace { token, log: &log, leader };
    let undead = process::end_remnants(&trace, if is_known { KNOWN_UNDEAD } else { KILL_PATIENCE });
    fault::point("recover.before_settle")?;
    if !undead.is_empty() {
        if let Some(job) = row.filter(|job| matches!(job.phase, Phase::Started { .. })) {
            note_undead(home, store, &job, &undead)?;
        }
        // As long as somebody looks after them, no other machine takes the row for that of a lost one.
        store.renew(token, home.config.node.lease.0)?;
        return Ok(Recovered::Undead(undead));
    }
    if let Some(job) = row {
        settle_row(home, store, token, &job, clock::now())?;
    }
    fault::point("recover.after_settle")?;
    home.cache.remove_work(token).context("removing the work directory of a dead run")?;
    Ok(Recovered::Free)
}

/// Where machines share the queue: ends what dead workers left running, without the database. It may be out of reach of this
/// machine alone, and their jobs are others' when their leases have ended. Rows and records stay for [`recover`].
///
/// # Errors
/// The slots cannot be read.
pub fn end_leftovers(home: &Home) -> Result<()> {
    if !home.is_shared() {
        return Ok(());
    }
    for (token, path) in signed_tokens(home)? {
        let Some(slot) = lock::try_take(&path)? else { continue };
        if let Reading::Record(record) = slot.left_behind()?
            && record.tokens().any(|left| *left == token)
        {
            let leader = record.leader.filter(|_| record.boot == process::boot_id());
            let log = home.layout.log(&token);
            process::end_remnants(&Trace { token: &token, log: &log, leader }, KNOWN_UNDEAD);
        }
    }
    Ok(())
}

fn note_undead(home: &Home, store: &mut dyn Store, job: &Job, undead: &[Identity]) -> Result<()> {
    let pids: Vec<_> = undead.iter().map(|process| process.pid.to_string()).collect();
    let detail = format!("signal 9 did not end process {}", pids.join(", "));
    fail(home, store, job, &FailureNote { reason: Failure::WouldNotDie, detail: &detail, keeps_token: true })
}

fn fail(home: &Home, store: &mut dyn Store, job: &Job, note: &FailureNote<'_>) -> Result<()> {
    let mut run = job.run(Outcome::from(note.reason.state()), clock::now());
    run.reason = Some(note.reason);
    run.detail = Some(note.detail.to_owned());
    store.fail(&run, &bind::node_id(&home.layout)?, note)?;
    Ok(())
}

fn settle_row(home: &Home, store: &mut dyn Store, token: &str, job: &Job, now: DateTime<Utc>) -> Result<()> {
    let Phase::Started { since, .. } = &job.phase else {
        store.let_go(token)?;
        return Ok(());
    };
    // Whatever lies there since this run began was published by it: nobody else may run this key meanwhile.
    let published = home.cache.fulfils(&job.filename, job.wanted_since().min(*since), now)?;
    let bounds = bounds(home);
    match rules::after_death(job, published.is_some(), bounds) {
        Fate::Fulfilled => {
            let mut run = job.run(Outcome::Ready, now);
            run.published_at = published.as_ref().map(|file| file.dates.modified);
            run.measured.bytes = published.as_ref().map(|file| file.bytes);
            store.finish(&run, &bind::node_id(&home.layout)?)?;
        }
        Fate::Cancelled if job.newer_than >= job.cancel_at => {
            store.requeue(token, Again::Wanted, None)?;
        }
        Fate::Cancelled => {
            let note = FailureNote { reason: Failure::Cancelled, detail: "cancelled", keeps_token: false };
            fail(home, store, job, &note)?;
        }
        Fate::Again => {
            let run = job.run(Outcome::Interrupted, now);
            store.requeue(token, Again::Interrupted, Some((&run, &bind::node_id(&home.layout)?)))?;
        }
        Fate::Interrupted(detail) => {
            fail(home, store, job, &FailureNote { reason: Failure::Interrupted, detail: &detail, keeps_token: false })?;
        }
    }
    Ok(())
}

/// How often a job may lose its worker, by configuration.
pub fn bounds(home: &Home) -> Bounds {
    let failures = &home.config.failures;
    Bounds { interruptions: failures.max_interruptions, stops: failures.max_stops }
}

/// Settles started rows whose token stands in no slot: their slot file was replaced or removed.
///
/// # Errors
/// The database or a slot file cannot be used.
pub fn recover_strays(home: &Home, store: &mut dyn Store) -> Result<()> {
    // Rows first, records second: a worker writes its record before it claims.
    let started = store.started_on(&bind::node_id(&home.layout)?)?;
    if started.is_empty() {
        return Ok(());
    }
    let known = signed_tokens(home)?;
    let is_known = |job: &Job, known: &BTreeMap<String, _>| match &job.phase {
        Phase::Started { token, .. } => known.contains_key(token),
        Phase::Queued { .. } | Phase::Failed { .. } => true,
    };
    let mut strays = Vec::new();
    for job in started.into_iter().filter(|job| !is_known(job, &known)) {
        // A run that was settled between the two readings is no stray.
        let row = job.last_run.as_deref().map(|token| store.find_by_token(token)).transpose()?.flatten();
        strays.extend(row);
    }
    if strays.is_empty() {
        return Ok(());
    }
    // A record may have been read while it was being written: only a second look, a moment later, counts.
    thread::sleep(SECOND_LOOK);
    let known = signed_tokens(home)?;
    for job in strays.into_iter().filter(|job| !is_known(job, &known)) {
        let Phase::Started { token, worker, slot, .. } = &job.phase else {
            continue;
        };
        if store.find_by_token(token)?.is_none() {
            continue;
        }
        if let Ok(worker) = worker.parse::<Identity>() {
            process::signal(worker, Signal::KILL);
        }
        if let Recovered::Undead(_) = settle_run(home, store, token, None)? {
            keep_taken(home, slot, token)?;
        }
    }
    Ok(())
}

/// Where machines share the queue: shows them that this one is there, and takes over jobs of those that have not renewed their
/// lease. Each begins with its old work directory, so that nothing of the old run can be published any more.
///
/// # Errors
/// The first that is met; the other jobs are taken over all the same.
pub fn take_over(home: &Home, store: &mut dyn Store) -> Result<()> {
    if !home.is_shared() {
        return Ok(());
    }
    bind::show(home, store)?;
    let until = clock::monotonic() + TAKE_OVER;
    let node = bind::node_id(&home.layout)?;
    let mut outcome = Ok(());
    let mut after = 0;
    loop {
        let page = store.lost(&node, after, LOST_PAGE)?;
        let Some(last) = page.last() else { return outcome };
        after = last.id;
        for job in &page {
            if clock::monotonic() >= until {
                return outcome;
            }
            let taken = take_over_one(home, store, job);
            outcome = outcome.and(taken.with_context(|| format!("taking over job {}", job.id)));
        }
    }
}

fn take_over_one(home: &Home, store: &mut dyn Store, job: &Job) -> Result<()> {
    let Some(token) = job.phase.token() else { return Ok(()) };
    home.cache.take_away(token).context("moving its work directory away")?;
    settle_row(home, store, token, job, clock::now())
}

/// A slot whose file was replaced stays taken for the processes that do not die: its new file names their run.
fn keep_taken(home: &Home, slot: &str, token: &str) -> Result<()> {
    let path = home.layout.slots().join(slot);
    let Some(held) = SlotName::from_path(&path).map(|_| lock::try_take(&path)).transpose()?.flatten() else {
        return Ok(());
    };
    Ok(held.announce(Some(token.to_owned()))?)
}

/// The tokens in all slot files, with their slot file's path.
///
/// # Errors
/// The directory of slots cannot be read.
pub fn signed_tokens(home: &Home) -> Result<BTreeMap<String, std::path::PathBuf>> {
    let mut tokens = BTreeMap::new();
    for entry in fs::read_dir(home.layout.slots())?.flatten() {
        if let Ok(Reading::Record(record)) = lock::read(&entry.path()) {
            tokens.extend(record.tokens().map(|token| (token.clone(), entry.path())));
        }
    }
    Ok(tokens)
}

/// What ticks remember of locks that are held by nobody they can name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Suspects {
    boot: String,
    /// Per lock file: what was read in it, and the monotonic clock in milliseconds when that was first seen.
    seen: BTreeMap<String, (String, u64)>,
}

/// Looks at a lock that somebody else holds; ends the holder if it gives no sign of life. True when somebody was ended.
///
/// # Errors
/// The lock file cannot be read.
pub fn end_if_silent(home: &Home, path: &Path) -> Result<bool> {
    let first = lock::read(path)?;
    let now = clock::monotonic();
    match &first {
        Reading::Record(record)
            if record.boot == process::boot_id() && record.holder.is_some_and(process::is_alive) =>
        {
            let Some(holder) = record.holder else {
                return Ok(false);
            };
            if now.saturating_sub(Duration::from_millis(record.beat)) < SILENCE {
                return Ok(false);
            }
            thread::sleep(Duration::from_secs(1));
            let unchanged = lock::read(path)? == first;
            Ok(unchanged && end(path, holder))
        }
        Reading::Record(_) | Reading::Blank | Reading::Torn => end_unknown(home, path, &first, now),
    }
}

fn end(path: &Path, holder: Identity) -> bool {
    tracing::warn!("process {holder} holds {} and gives no sign of life: it is killed", path.display());
    process::signal(holder, Signal::KILL)
}

/// A lock held for a minute with a record that names nobody alive belongs to whoever of our program has it open.
fn end_unknown(home: &Home, path: &Path, reading: &Reading, now: Duration) -> Result<bool> {
    if !is_stuck(home, path, format!("{reading:?}"), now)? {
        return Ok(false);
    }
    thread::sleep(Duration::from_secs(1));
    if lock::read(path)? != *reading || lock::try_take(path)?.is_some() {
        return Ok(false);
    }
    let meta = fs::metadata(path)?;
    let mut holders = process::holders((meta.dev(), meta.ino()));
    if home.is_shared() && path == home.layout.cache_lock() {
        // Its holder may be on another machine, and whoever has it open here only waits for it: the kernel knows.
        let holder = lock::writer_of(meta.ino(), 0);
        holders.retain(|process| Some(process.pid) == holder);
    }
    Ok(holders.into_iter().filter(|holder| end(path, *holder)).count() > 0)
}

/// Notes what was seen at a lock; true when ticks have seen the same, and nothing else, for a minute.
fn is_stuck(home: &Home, path: &Path, seen: String, now: Duration) -> Result<bool> {
    let file = home.layout.suspects();
    let mut suspects: Suspects =
        bind::read_small(&file, 1 << 20)?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    if suspects.boot != process::boot_id() {
        suspects = Suspects { boot: process::boot_id(), seen: BTreeMap::new() };
    }
    let name = path.to_string_lossy().into_owned();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let since = match suspects.seen.get(&name) {
        Some((before, since)) if *before == seen => *since,
        _ => now,
    };
    let is_stuck = now.saturating_sub(since) >= SILENCE.as_millis() as u64;
    if is_stuck {
        suspects.seen.remove(&name);
    } else {
        suspects.seen.insert(name, (seen, since));
    }
    fs::write(&file, serde_json::to_string(&suspects)?).with_context(|| format!("writing {}", file.display()))?;
    Ok(is_stuck)
}

/// Ends a process of this program that was frozen in a transaction and keeps everybody else from writing.
///
/// # Errors
/// The note of what ticks saw cannot be written.
pub fn end_frozen_writer(home: &Home, store: &mut dyn Store) -> Result<()> {
    let index = home.layout.database_index();
    // The kernel's list of locks holds up every process that locks something while it is read: only where it is needed.
    if !store.is_being_written()? {
        return clear_suspicion(home, &index);
    }
    let writer = || {
        let meta = fs::metadata(&index).ok()?;
        let pid = lock::writer_of(meta.ino(), lock::SQLITE_WRITE_BYTE)?;
        let stat = process::stat(pid)?;
        Some((stat.identity, stat.cpu_ticks))
            .filter(|_| process::holders((meta.dev(), meta.ino())).contains(&stat.identity))
    };
    let Some(first) = writer() else {
        return clear_suspicion(home, &index);
    };
    if !is_stuck(home, &index, format!("{first:?}"), clock::monotonic())? {
        return Ok(());
    }
    // It has done nothing for a minute, as far as ticks saw; now it is watched without a gap.
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(50));
        if writer() != Some(first) {
            return Ok(());
        }
    }
    end(&index, first.0);
    Ok(())
}

/// Forgets that a lock was suspicious: it was seen free.
///
/// # Errors
/// The note cannot be written.
pub fn clear_suspicion(home: &Home, path: &Path) -> Result<()> {
    let file = home.layout.suspects();
    let Some(text) = bind::read_small(&file, 1 << 20)? else {
        return Ok(());
    };
    let mut suspects: Suspects = serde_json::from_str(&text).unwrap_or_default();
    if suspects.seen.remove(&*path.to_string_lossy()).is_some() {
        fs::write(&file, serde_json::to_string(&suspects)?).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}
