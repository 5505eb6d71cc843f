//! A tick: recover, start, tidy, notify, prune. Each step stands on its own and is bounded in time; two ticks at once are
//! harmless.
//!
//! A tick waits for nobody and says nothing when all is well. A standing finding (an exporter missing) is told when it is
//! new, then hourly.

mod plan;
mod poke;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use rustix::process::Signal;

use self::poke::Poke;
use crate::bind::{self, Home};
use crate::clock;
use crate::errand;
use crate::exit::{Exit, exit_of};
use crate::exporter;
use crate::fault;
use crate::gates;
use crate::identity::Identity;
use crate::layout::SlotName;
use crate::lock;
use crate::process;
use crate::recover::{self, Recovered};
use crate::retention::Wish;
use crate::stop::Stop;
use crate::store::Store;
use crate::sweep;
use crate::work;

pub use plan::{Plan, plan};

/// How long a dispatcher that goes on waits between looks when nobody pokes it.
const LOOK: Duration = Duration::from_secs(1);

/// How often a dispatcher that goes on does a whole tick.
const WHOLE: Duration = Duration::from_secs(10);

/// How often the cache is walked for files that no run names, and a standing finding is told again.
const HOURLY: Duration = Duration::from_secs(3600);

/// How many workers in a row may be killed before this dispatch starts no more.
const MAX_KILLED: u32 = 10;

/// How much longer than its exporter may take a worker has to end after a TERM.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// After how many signals a dispatch that waits kills workers that do not listen.
const MAX_ASKED: u32 = 3;

/// What a dispatch is asked to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Orders {
    /// Go on starting for that long.
    pub for_time: Option<Duration>,
    /// Go on until the workers have ended.
    pub wait: bool,
}

/// Something that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How grave it is.
    pub exit: Exit,
    /// One line.
    pub message: String,
}

/// Dispatches; gives back what is new to tell, and how to end.
///
/// # Errors
/// The queue cannot be used at all.
pub fn dispatch(home: &mut Home, orders: Orders, tell: &mut dyn FnMut(&str)) -> Result<Exit> {
    let mut store = home.open_as_owner().or_else(|error| {
        if exit_of(&error) == Exit::TryLater {
            recover::end_leftovers(home)?;
        }
        Err(error)
    })?;
    let stop = Stop::listen()?;
    let poke = Poke::watch(&home.layout.poke())?;
    let is_patient = orders.wait || is_main_process_of_unit();
    if is_patient {
        process::become_subreaper()?;
    }
    let until = orders.for_time.map(|time| clock::monotonic() + time);
    home.listen(until.is_some())?;
    let mut dispatcher = Dispatcher::new(home, &mut *store);
    dispatcher.whole_tick()?;
    dispatcher.tell(tell)?;
    let mut next_whole = clock::monotonic() + WHOLE;
    loop {
        dispatcher.reap()?;
        if dispatcher.news == News::Killed {
            // A worker was killed: what it left is settled now and not by the next tick.
            dispatcher.whole_tick()?;
        }
        let now = clock::monotonic();
        let goes_on = until.is_some_and(|until| now < until);
        let awaits = is_patient && (dispatcher.has_children() || (!stop.is_asked() && dispatcher.run_errands()?));
        if stop.is_asked() || !(goes_on || awaits) {
            break;
        }
        let left = until.filter(|_| goes_on).map(|until| until.saturating_sub(now));
        let woken = poke.wait(&stop, pause(left))?;
        let is_time = clock::monotonic() >= next_whole;
        // What its workers have just put back is not started once more, only to be stopped again.
        if stop.is_asked() || !(woken || awaits || is_time || dispatcher.has_due()?) {
            continue;
        }
        if dispatcher.home.reload()? {
            dispatcher.store.tell(bind::audience(&dispatcher.home.config));
        }
        dispatcher.reap()?;
        if is_time {
            dispatcher.whole_tick()?;
            dispatcher.tell(tell)?;
            next_whole = clock::monotonic() + WHOLE;
        } else if (woken || goes_on || awaits) && dispatcher.news != News::Ailing {
            dispatcher.start()?;
            dispatcher.run_errands()?;
        }
    }
    if !dispatcher.findings.is_empty() {
        dispatcher.tell_more(tell)?;
    }
    if stop.is_asked() && is_patient {
        dispatcher.stop_workers(&stop)?;
    }
    Ok(dispatcher.exit)
}

/// How long to wait for a poke, not beyond the end: about as long as [`LOOK`], so that machines which share a database and hear
/// nothing of each other do not all look at the same instant.
fn pause(left: Option<Duration>) -> Duration {
    let look = LOOK.mul_f64(0.75 + fastrand::f64() / 2.0);
    left.map_or(look, |left| left.min(look))
}

/// Formats that wait in a queue and cannot be made here: queue, format, how grave it is, and why.
///
/// # Errors
/// The database cannot be read.
pub fn obstacles(home: &Home, store: &dyn Store) -> Result<Vec<(String, String, Exit, String)>> {
    let mut found = Vec::new();
    for queue in store.queues_waiting()? {
        for format in store.due_formats(&queue)? {
            let obstacle = match home.config.format.get(&format) {
                None => Some((
                    Exit::ExporterMissing,
                    format!("there is no [format.{format}] in the configuration any more"),
                )),
                Some(found) => exporter::obstacle(found, &home.config.format_limits(&format)),
            };
            found.extend(obstacle.map(|(exit, why)| (queue.clone(), format, exit, why)));
        }
    }
    Ok(found)
}

/// What was heard of the workers since the last whole tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// All is well.
    None,
    /// One was killed.
    Killed,
    /// One met trouble of its own: a new one would meet it too.
    Ailing,
}

struct Dispatcher<'a> {
    home: &'a mut Home,
    store: &'a mut dyn Store,
    exit: Exit,
    workers: BTreeSet<i32>,
    /// The process that runs errands, if one was started.
    errands: Option<i32>,
    /// It met trouble, or was killed: there is no other before the next whole tick.
    errands_rest: bool,
    news: News,
    killed_in_a_row: u32,
    findings: Vec<Finding>,
}

impl<'a> Dispatcher<'a> {
    fn new(home: &'a mut Home, store: &'a mut dyn Store) -> Self {
        Self {
            home,
            store,
            exit: Exit::Done,
            workers: BTreeSet::new(),
            errands: None,
            errands_rest: false,
            news: News::None,
            killed_in_a_row: 0,
            findings: Vec::new(),
        }
    }

    /// All steps; one that fails does not keep the others from being done.
    fn whole_tick(&mut self) -> Result<()> {
        self.news = News::None;
        self.errands_rest = false;
        let before = last_tick(&self.home.layout.tick())?;
        self.recover()?;
        self.start()?;
        self.look_for_exporters()?;
        let now = clock::now();
        self.step("tidying", |this| this.tidy(before, now))?;
        self.run_errands()?;
        if age_of(&self.home.layout.walked(), now)?.is_none_or(|age| age >= HOURLY) {
            self.step("walking the cache", |this| this.hourly(now))?;
        }
        self.step("noting the tick", |this| {
            fault::point("dispatch.before_touch")?;
            touch(&this.home.layout.tick(), now)
        })
    }

    /// Does a step whose trouble is told and does not end the tick, unless the database itself is unusable.
    fn step(&mut self, what: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match body(self) {
            Ok(()) => Ok(()),
            Err(error) if exit_of(&error) == Exit::Config => Err(error),
            Err(error) => {
                self.find(exit_of(&error), format!("{what}: {error:#}"));
                Ok(())
            }
        }
    }

    fn find(&mut self, exit: Exit, message: String) {
        self.exit = self.exit.graver(exit);
        self.findings.push(Finding { exit, message });
    }

    /// Every slot file there is, also of queues and numbers not in force any more.
    fn recover(&mut self) -> Result<()> {
        self.step("looking at the database's lock", |this| recover::end_frozen_writer(this.home, this.store))?;
        self.step("ending what dead workers left", |this| recover::end_leftovers(this.home))?;
        for path in slot_files(self.home)? {
            self.step("recovering a slot", |this| this.recover_slot(&path))?;
        }
        self.step("taking over lost jobs", |this| recover::take_over(this.home, this.store))?;
        self.step("settling jobs without a slot", |this| recover::recover_strays(this.home, this.store))?;
        let cache_lock = self.home.layout.cache_lock();
        self.step("looking at the cache lock", |this| match take_lock(&cache_lock)? {
            Some(held) => {
                recover::clear_suspicion(this.home, &cache_lock)?;
                Ok(held.release()?)
            }
            None => recover::end_if_silent(this.home, &cache_lock).map(drop),
        })
    }

    fn recover_slot(&mut self, path: &Path) -> Result<()> {
        let taken = match take_lock(path)? {
            None if recover::end_if_silent(self.home, path)? => lock::take_within(path, Duration::from_secs(2))?,
            other => other,
        };
        let Some(slot) = taken else { return Ok(()) };
        recover::clear_suspicion(self.home, path)?;
        self.settle(slot).map(drop)
    }

    /// Settles a slot's last run and gives the slot back if it is usable; an unusable one keeps its record.
    fn settle(&mut self, slot: lock::Held) -> Result<bool> {
        match recover::recover(self.home, self.store, &slot)? {
            Recovered::Free => {
                slot.release()?;
                Ok(true)
            }
            Recovered::Undead(processes) => {
                let pids: Vec<_> = processes.iter().map(|process| process.pid.to_string()).collect();
                let name = slot.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.find(
                    Exit::TryLater,
                    format!("slot {name} stays taken: KILL does not end process {}", pids.join(", ")),
                );
                Ok(false)
            }
        }
    }

    /// For each free slot with a due job: a worker.
    fn start(&mut self) -> Result<()> {
        if let Err(error) = self.home.see_shared_cache() {
            self.find(exit_of(&error), format!("nothing is started: {error:#}"));
            return Ok(());
        }
        let mut formats = None;
        let queues: Vec<_> = self.home.config.queue.iter().map(|(name, queue)| (name.clone(), queue.clone())).collect();
        for (name, queue) in queues {
            let config = &self.home.config;
            if !self.is_asked(&name)? || gates::closed(&queue, &self.home.layout.cache).is_some() {
                continue;
            }
            let formats = formats.get_or_insert_with(|| exporter::available(config));
            let mut due = work::startable(self.store, (&name, &queue), formats, queue.slots)?;
            for number in 0..queue.slots {
                if due == 0 {
                    break;
                }
                let slot = SlotName { queue: name.clone(), number };
                self.step("starting a worker", |this| {
                    let started = this.start_in(&slot)?;
                    due -= u32::from(started.is_some());
                    this.workers.extend(started);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Whether any queue has something due.
    fn has_due(&self) -> Result<bool> {
        for queue in self.home.config.queue.keys() {
            if self.is_asked(queue)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a queue has anything due, whatever can be made here: what costs little is looked at first, since mostly there
    /// is nothing.
    fn is_asked(&self, queue: &str) -> Result<bool> {
        let config = &self.home.config;
        let formats: Vec<_> =
            config.format.keys().map(|name| (name.clone(), config.format_limits(name).timeout.0)).collect();
        Ok(self.store.due(queue, &formats, clock::now(), 1)? > 0)
    }

    /// A process that works in a slot, if the slot is free: its number.
    fn start_in(&mut self, name: &SlotName) -> Result<Option<i32>> {
        let path = self.home.layout.slot(name);
        let Some(slot) = take_lock(&path)? else {
            return Ok(None);
        };
        // Where the lock file was taken away, its worker holds one that nobody sees any more.
        recover::recover_strays(self.home, self.store)?;
        if let Recovered::Undead(_) = recover::recover(self.home, self.store, &slot)? {
            return Ok(None);
        }
        let child = match work::spawn(self.home, &slot, name) {
            Ok(child) => child,
            Err(error) => {
                slot.release()?;
                return Err(error).context(format!("in slot {name}"));
            }
        };
        fault::point("dispatch.after_spawn")?;
        Ok(Some(child.id().cast_signed()))
    }

    /// If an errand is due and nobody runs errands: a process that does; true when one was started.
    fn run_errands(&mut self) -> Result<bool> {
        let mut started = None;
        self.step("starting errands", |this| {
            if !this.errands_rest && errand::is_due(this.home, this.store, clock::now())? {
                started = this.start_in(&errand::slot())?;
            }
            Ok(())
        })?;
        self.errands = started.or(self.errands);
        Ok(started.is_some())
    }

    fn look_for_exporters(&mut self) -> Result<()> {
        for (queue, format, exit, obstacle) in obstacles(self.home, self.store)? {
            self.find(exit, format!("{format} jobs wait in queue {queue}: {obstacle}"));
        }
        Ok(())
    }

    /// Fulfilled jobs go, failures shown long enough, files over age, and what dead runs left.
    fn tidy(&mut self, last: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Result<()> {
        let since = last.unwrap_or_default() - chrono::Duration::minutes(2);
        let fulfilled = self.store.fulfilled(since)?;
        if !fulfilled.is_empty() {
            self.forget(fulfilled, now)?;
        }
        self.store.expire_waits(now)?;
        let failures = &self.home.config.failures;
        self.store.expire_failed(now - failures.ttl.0, failures.max, now)?;
        if self.home.is_shared()
            && let Err(error) = self.home.cache.put_back_aside(now)
        {
            self.find(Exit::TryLater, format!("{}: {error}", self.home.layout.work().display()));
        }
        let report = sweep::renew(self.home, self.store, since)?;
        self.report(&report);
        let report = sweep::by_index(self.home, self.store, now)?;
        self.report(&report);
        let report = sweep::by_size(self.home, self.store, now)?;
        self.report(&report);
        for trouble in sweep::remove_orphans(self.home, self.store)? {
            self.find(Exit::TryLater, trouble);
        }
        Ok(())
    }

    /// Deletes fulfilled rows under the cache lock: their files are there while it is held.
    fn forget(&mut self, fulfilled: Vec<(i64, String)>, now: DateTime<Utc>) -> Result<()> {
        let Some(lock) = self.home.lock_cache(Duration::from_secs(10))? else {
            return Ok(());
        };
        fault::point("tidy.before_forget")?;
        for (id, filename) in fulfilled {
            if let Some((file, _)) = self.home.cache.ready(&filename, now)? {
                self.store.forget(id, file.dates.modified)?;
            }
        }
        Ok(lock.release()?)
    }

    fn hourly(&mut self, now: DateTime<Utc>) -> Result<()> {
        let report = sweep::walk(self.home, self.store, Wish::default(), false, now)?;
        self.report(&report);
        let history = &self.home.config.history;
        self.store.prune_history(now - history.keep.0, history.max_rows)?;
        self.store.forget_deliveries(now - history.keep.0, history.max_rows)?;
        touch(&self.home.layout.walked(), now)
    }

    fn report(&mut self, report: &sweep::Report) {
        // One line, however many files resist: cron mails it.
        if let Some(first) = report.trouble.first() {
            let more = match report.trouble.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            self.find(Exit::TryLater, format!("sweeping: {first}{more}"));
        }
    }

    /// Tells what a whole tick found that is new, or was told an hour ago; what it did not find again is over.
    fn tell(&mut self, tell: &mut dyn FnMut(&str)) -> Result<()> {
        self.tell_new(true, tell)
    }

    /// Tells what was found between whole ticks.
    fn tell_more(&mut self, tell: &mut dyn FnMut(&str)) -> Result<()> {
        self.tell_new(false, tell)
    }

    /// Notes what is told and when (seconds after the epoch), and tells it. Of two ticks at once one does; what only the
    /// other found is told by the next.
    fn tell_new(&mut self, was_whole: bool, tell: &mut dyn FnMut(&str)) -> Result<()> {
        let path = self.home.layout.findings();
        let findings = std::mem::take(&mut self.findings);
        if findings.is_empty() && !path.exists() {
            return Ok(());
        }
        let Some(mut notes) = lock::open_alone(&path).with_context(|| format!("opening {}", path.display()))? else {
            return Ok(());
        };
        let mut old = String::new();
        (&notes).take(1 << 20).read_to_string(&mut old).with_context(|| format!("reading {}", path.display()))?;
        let mut told: BTreeMap<String, i64> = serde_json::from_str(&old).unwrap_or_default();
        told.retain(|message, _| !was_whole || findings.iter().any(|finding| finding.message == *message));
        let now = clock::now().timestamp();
        let is_due = |last: i64| now - last >= HOURLY.as_secs().cast_signed() || last > now + 60;
        let mut news = Vec::new();
        for finding in findings {
            if told.get(&finding.message).is_none_or(|last| is_due(*last)) {
                told.insert(finding.message.clone(), now);
                news.push(finding.message);
            }
        }
        let new = serde_json::to_string(&told)?;
        let is_same = new == old || (old.is_empty() && told.is_empty());
        let noted = if is_same { Ok(()) } else { write_anew(&mut notes, &new) };
        drop(notes);
        // Told also where it cannot be noted: a full disk is a finding itself.
        for message in &news {
            tell(message);
        }
        noted.with_context(|| format!("writing {}", path.display()))
    }

    /// Takes away workers that have ended, and notes how.
    fn reap(&mut self) -> Result<()> {
        loop {
            match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_nonzero().get();
                    if self.errands == Some(pid) {
                        // Whatever its trouble is, no export is held up by it.
                        self.errands_rest |= status.exit_status() != Some(0);
                        continue;
                    }
                    let was_ours = self.workers.remove(&pid);
                    match status.exit_status() {
                        Some(0) => self.killed_in_a_row = 0,
                        // What a killed worker left behind comes to a patient dispatcher too; only workers count.
                        _ if !was_ours => {}
                        Some(code) => {
                            self.exit = self.exit.graver(Exit::from_code(code));
                            self.news = News::Ailing;
                        }
                        None => self.note_killed(),
                    }
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for workers"),
            }
        }
    }

    /// A worker was killed. One is an accident; many in a row, before they could do anything, are a fault of this machine.
    fn note_killed(&mut self) {
        self.killed_in_a_row += 1;
        if self.killed_in_a_row < MAX_KILLED {
            self.news = News::Killed;
        } else {
            self.news = News::Ailing;
            self.find(Exit::TryLater, format!("{MAX_KILLED} workers in a row were killed; the next tick tries again"));
        }
    }

    /// Workers of ours that are alive, and successors that came to us when those ended; what a dead worker left behind is
    /// not among them.
    fn living_workers(&mut self) -> Vec<Identity> {
        let me = process::myself().pid;
        let children = process::descendants(me).into_iter().filter(|child| child.parent == me);
        let workers = children.map(|child| child.identity).filter(|child| process::is_this_program(child.pid));
        let workers: Vec<_> = workers.collect();
        let errands = self.errands;
        self.workers.extend(workers.iter().map(|worker| worker.pid).filter(|pid| Some(*pid) != errands));
        workers
    }

    fn has_children(&mut self) -> bool {
        !self.living_workers().is_empty() || !self.workers.is_empty()
    }

    /// Passes a TERM on to the workers and waits for them; a further one hurries them. A worker that does not go in its
    /// time, or after a third, is killed, and what it leaves is settled here.
    fn stop_workers(&mut self, stop: &Stop) -> Result<()> {
        let until = clock::monotonic() + self.longest_grace() + recover::KILL_PATIENCE + STOP_MARGIN;
        let mut asked = 0;
        let mut was_killed = false;
        loop {
            self.reap()?;
            let workers = self.living_workers();
            if workers.is_empty() {
                return if was_killed { self.recover() } else { Ok(()) };
            }
            let count = stop.count();
            if count >= MAX_ASKED || clock::monotonic() >= until {
                was_killed = true;
                signal_all(&workers, Signal::KILL);
            } else if count > asked {
                asked = count;
                signal_all(&workers, Signal::TERM);
            }
            stop_pause(stop, count);
        }
    }

    /// The longest time that any exporter has between TERM and KILL.
    fn longest_grace(&self) -> Duration {
        let graces = self.home.config.format.keys().map(|format| self.home.config.format_limits(format).kill_grace.0);
        graces.max().unwrap_or_default()
    }
}

fn write_anew(notes: &mut File, text: &str) -> std::io::Result<()> {
    notes.set_len(0)?;
    notes.rewind()?;
    notes.write_all(text.as_bytes())
}

fn signal_all(workers: &[Identity], signal: Signal) {
    for worker in workers {
        // One that is gone is what was wanted.
        process::signal(*worker, signal);
    }
}

/// Waits a moment, or until a further signal comes.
fn stop_pause(stop: &Stop, asked: u32) {
    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    if stop.count() == asked {
        // A failed or interrupted wait is only a shorter one.
        let _ =
            rustix::event::poll(&mut [rustix::event::PollFd::new(stop, rustix::event::PollFlags::IN)], Some(&pause));
    }
}

/// Takes a lock if it is free, saying which file is at fault where that is not possible.
fn take_lock(path: &Path) -> Result<Option<lock::Held>> {
    lock::try_take(path).map_err(|error| bind::unusable(path, &error))
}

fn slot_files(home: &Home) -> Result<Vec<PathBuf>> {
    let slots = home.layout.slots();
    let entries = fs::read_dir(&slots).map_err(|error| bind::unusable(&slots, &error))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> = paths.filter(|path| SlotName::from_path(path).is_some()).collect();
    paths.sort();
    Ok(paths)
}

/// When the last tick was, if there ever was one.
///
/// # Errors
/// The file cannot be looked at.
pub fn last_tick(path: &Path) -> Result<Option<DateTime<Utc>>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta.modified()?.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("looking at {}", path.display())),
    }
}

fn age_of(path: &Path, now: DateTime<Utc>) -> Result<Option<Duration>> {
    // A date in the future is as good as none: a clock was wrong.
    Ok(last_tick(path)?.and_then(|date| (now - date).to_std().ok()))
}

fn touch(path: &Path, now: DateTime<Utc>) -> Result<()> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().create(true).append(true).custom_flags(nofollow).open(path);
    let file: File = file.with_context(|| format!("opening {}", path.display()))?;
    file.set_modified(now.into()).with_context(|| format!("touching {}", path.display()))
}

/// systemd kills what a unit's main process leaves behind, so there a dispatch stays until its workers have ended.
fn is_main_process_of_unit() -> bool {
    let pid = std::env::var("SYSTEMD_EXEC_PID").ok().and_then(|text| text.parse().ok());
    pid == Some(process::myself().pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatchers_do_not_look_at_the_same_instant() {
        let pauses: BTreeSet<Duration> = (0..100).map(|_| pause(None)).collect();
        assert!(pauses.len() > 50, "{pauses:?}");
        assert!(pauses.iter().all(|pause| (750..=1250).contains(&pause.as_millis())), "{pauses:?}");
        assert_eq!(pause(Some(Duration::from_millis(3))), Duration::from_millis(3));
    }
}
