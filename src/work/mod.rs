//! The worker: holds a slot, claims jobs one after another, and supervises one exporter at a time.
//!
//! It is given its slot's lock as standard input. Before each claim it settles whatever the slot's last run left behind,
//! reads the configuration again and writes the new run's token into the slot: from then on whoever finds the lock free
//! knows which run died. The attempt is counted and committed by the claim, before the exporter starts. A worker that meets
//! trouble of its own ends and leaves its record; the next tick recovers the slot, which is the one way back from any death.

mod base;
mod export;
mod keep;
mod watch;

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

pub(crate) use self::export::FINGERPRINT_LIMIT;
use self::export::{Conclusion, Export};
use self::keep::Keeper;
pub(crate) use self::watch::{Mark, Verdict, Watch};
use crate::bind::{self, Home};
use crate::cache::Finished;
use crate::clock;
use crate::config::Queue;
use crate::exit::{Exit, Refusal};
use crate::exporter;
use crate::fault;
use crate::gates;
use crate::job::{Failure, Job, Measured, Outcome, Run};
use crate::layout::SlotName;
use crate::lock::{self, Held, Record};
use crate::process;
use crate::recover::{self, Recovered};
use crate::rules::{self, Fate};
use crate::stop::Stop;
use crate::store::{Again, Claim, FailureNote, Settled, Store};

/// How long a worker waits before it writes a failing end: a shutdown's signals reach exporters too.
const DOUBT: Duration = Duration::from_millis(500);

/// For how long it is taken as known which formats can be made here.
const FORMATS_HOLD: Duration = Duration::from_secs(1);

/// How long after a machine that could not start an exporter the job is tried again.
const UNABLE: Duration = Duration::from_secs(5);

/// Works in a slot until nothing is due.
///
/// # Errors
/// Trouble of our own; the slot's record then names the run that `recover` is to settle.
pub fn work(mut home: Home, name: &SlotName) -> Result<Exit> {
    let (mut slot, stop) = take_over(&home, name)?;
    let path = home.layout.slot(name);
    let mut store = home.open_as_owner()?;
    let until =
        clock::monotonic() + home.config.queue.get(&name.queue).map_or(Duration::ZERO, |queue| queue.work_window.0);
    let mut worker = Worker { home: &mut home, store: &mut *store, name, stop: &stop, exit: Exit::Done, formats: None };
    loop {
        match worker.drain(&slot, until)? {
            Drained::Window => return hand_over(worker.home, slot, name),
            // The record stays: it names the run whose processes are left, and keeps the slot taken for their sake.
            Drained::Undead => return Ok(Exit::TryLater),
            Drained::Ended => {
                slot.release()?;
                return Ok(worker.exit);
            }
            Drained::Idle => slot.release()?,
        }
        // Somebody may have asked between the last look and the release, and found the slot taken.
        if !worker.may_work()? || !worker.has_work()? {
            return Ok(worker.exit);
        }
        let Some(taken) = lock::try_take(&path)? else {
            return Ok(worker.exit);
        };
        taken.sign(bind::own_record())?;
        slot = taken;
    }
}

/// Leaves the caller's session and directory and takes the slot over that it gave as standard input.
///
/// # Errors
/// Standard input is not that slot (2), or the kernel refuses.
pub(crate) fn take_over(home: &Home, name: &SlotName) -> Result<(Held, Stop)> {
    detach()?;
    let stop = Stop::listen()?;
    process::become_subreaper()?;
    let slot = Held::from_stdin(&home.layout.slot(name)).map_err(|error| {
        Refusal::usage(format!("`work` is called by `dispatch`, with slot {name} as its input: {error}"))
    })?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?).context("emptying standard input")?;
    fault::point("work.before_record")?;
    slot.sign(first_record(&slot)?)?;
    Ok((slot, stop))
}

fn detach() -> Result<()> {
    // A worker started by hand in a terminal's foreground group leads it already; that is no harm.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
    std::env::set_current_dir("/").context("leaving the caller's directory")
}

/// This worker's first record: a run that the slot's last worker left stays named until it is settled.
fn first_record(slot: &Held) -> Result<Record> {
    let own = bind::own_record();
    Ok(match slot.left_behind()? {
        lock::Reading::Record(left) => {
            let leader = left.leader.filter(|_| left.boot == own.boot);
            Record { token: left.token, next: left.next, leader, ..own }
        }
        lock::Reading::Blank | lock::Reading::Torn => own,
    })
}

/// The worker's work window is over: a successor takes the slot without a gap.
#[expect(clippy::needless_pass_by_value, reason = "the slot is given away: this process lets go of it by ending")]
fn hand_over(home: &Home, slot: Held, name: &SlotName) -> Result<Exit> {
    spawn(home, &slot, name)?;
    Ok(Exit::Done)
}

/// How many jobs of a queue could be started now, counted to `limit`: those due, as far as the bound over all machines goes.
///
/// # Errors
/// The database cannot be read.
pub fn startable(
    store: &dyn Store,
    (name, queue): (&str, &Queue),
    formats: &[(String, Duration)],
    limit: u32,
) -> Result<u32> {
    let room = match queue.max_running {
        0 => limit,
        bound => limit.min(bound.saturating_sub(store.count_started(name)?)),
    };
    if room == 0 { Ok(0) } else { store.due(name, formats, clock::now(), room) }
}

/// Starts a worker that holds the slot's lock as its standard input.
///
/// # Errors
/// This program cannot be started.
pub fn spawn(home: &Home, slot: &Held, name: &SlotName) -> Result<std::process::Child> {
    slot.announce(None)?;
    fault::point("dispatch.before_spawn")?;
    let program = std::env::current_exe().context("finding this program")?;
    let renewed = program.to_string_lossy().strip_suffix(" (deleted)").map(std::path::PathBuf::from);
    let mut command = Command::new(renewed.unwrap_or(program));
    if let Some(config) = &home.config_path {
        command.arg("--config").arg(config);
    }
    command.arg("work").arg("--queue").arg(&name.queue).arg("--slot").arg(name.number.to_string());
    command.stdin(slot.for_child()?).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("starting a worker")
}

struct Worker<'a> {
    home: &'a mut Home,
    store: &'a mut dyn Store,
    name: &'a SlotName,
    stop: &'a Stop,
    /// The gravest that it met.
    exit: Exit,
    /// What can be made here, and when that was looked at (monotonic clock).
    formats: Option<(Duration, Vec<(String, Duration)>)>,
}

enum Drained {
    /// Nothing is due.
    Idle,
    /// The work window is over and something is due.
    Window,
    /// No more here.
    Ended,
    /// Processes of the last run do not die.
    Undead,
}

/// A job that this worker has claimed, and the token of its run.
struct Claimed {
    job: Job,
    token: String,
    /// When the claim was sent: time since boot.
    sent: Duration,
}

impl Worker<'_> {
    /// Claims and exports until there is a reason not to.
    fn drain(&mut self, slot: &Held, until: Duration) -> Result<Drained> {
        let mut next = None;
        loop {
            let claimed = match next {
                Some(claimed) => claimed,
                None => match self.claim_first(slot, until)? {
                    Ok(claimed) => claimed,
                    Err(drained) => return Ok(drained),
                },
            };
            next = self.one(slot, claimed, until)?;
        }
    }

    /// Settles whatever the slot's last run left behind and claims a job; or says why there is none.
    fn claim_first(&mut self, slot: &Held, until: Duration) -> Result<std::result::Result<Claimed, Drained>> {
        if self.is_replaced(slot) {
            return Ok(Err(Drained::Ended));
        }
        if let Recovered::Undead(_) = recover::recover(self.home, self.store, slot)? {
            return Ok(Err(Drained::Undead));
        }
        slot.sign(bind::own_record())?;
        if let Some(drained) = self.obstacle(slot)? {
            return Ok(Err(drained));
        }
        if !self.has_work()? {
            return Ok(Err(Drained::Idle));
        }
        if clock::monotonic() >= until {
            return Ok(Err(Drained::Window));
        }
        let claim = self.claim()?;
        slot.sign(Record { token: Some(claim.token.clone()), ..bind::own_record() })?;
        fault::point("work.before_claim")?;
        let sent = clock::since_boot();
        let job = match self.store.claim(&claim, clock::now()) {
            Ok(job) => job,
            Err(error) => Some(self.doubtful(&claim, error)?),
        };
        Ok(job.map(|job| Claimed { job, token: claim.token, sent }).ok_or(Drained::Idle))
    }

    /// Why this worker claims nothing more, if it does not.
    fn obstacle(&mut self, slot: &Held) -> Result<Option<Drained>> {
        if self.stop.is_asked() || self.is_replaced(slot) {
            return Ok(Some(Drained::Ended));
        }
        if self.home.reload()? {
            self.formats = None;
            self.store.tell(bind::audience(&self.home.config));
        }
        self.home.see_shared_cache()?;
        Ok(if self.may_work()? { None } else { Some(Drained::Idle) })
    }

    fn is_replaced(&mut self, slot: &Held) -> bool {
        let is_replaced = !slot.is_in_place();
        if is_replaced {
            tracing::warn!("the lock file of slot {} was replaced: this worker ends", self.name);
            self.exit = self.exit.graver(Exit::TryLater);
        }
        is_replaced
    }

    fn queue(&self) -> Option<&Queue> {
        self.home.config.queue.get(&self.name.queue)
    }

    /// Whether this slot still is in force and its queue open.
    fn may_work(&self) -> Result<bool> {
        let Some(queue) = self.queue() else {
            return Ok(false);
        };
        let is_open = self.store.pause_of(&self.name.queue)?.is_none();
        Ok(self.name.number < queue.slots && is_open && gates::closed(queue, &self.home.layout.cache).is_none())
    }

    fn has_work(&mut self) -> Result<bool> {
        let formats = self.formats();
        let Some(queue) = self.queue() else { return Ok(false) };
        Ok(startable(self.store, (&self.name.queue, queue), &formats, 1)? > 0)
    }

    /// What can be made here, as it was at most a second ago: an exporter that went since lets its job wait, uncounted.
    fn formats(&mut self) -> Vec<(String, Duration)> {
        let now = clock::monotonic();
        if self.formats.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= FORMATS_HOLD) {
            self.formats = Some((now, exporter::available(&self.home.config)));
        }
        self.formats.as_ref().map(|(_, formats)| formats.clone()).unwrap_or_default()
    }

    /// Does a claimed job; gives back the next, where the transaction that ended this one could claim it.
    fn one(&mut self, slot: &Held, Claimed { job, token, sent }: Claimed, until: Duration) -> Result<Option<Claimed>> {
        fault::point("work.after_claim")?;
        slot.sign(Record { token: Some(token.clone()), ..bind::own_record() })?;
        let conclusion = {
            let (home, stop) = (&*self.home, self.stop);
            let keeper = home.is_shared().then(|| Keeper::start(home, &token, sent)).transpose()?;
            Export { home, store: self.store, slot, stop, job: &job, token: &token, keeper }.run()?
        };
        let next = self.conclude(slot, &job, &token, conclusion, until)?;
        if self.clean_up(&job, &token, next.as_ref())? && next.is_none() {
            // The run is over and everything of it gone: there is nothing to recover in this slot.
            slot.sign(bind::own_record())?;
        }
        Ok(next)
    }

    /// A wish for a job, with the token of a new run.
    fn claim(&mut self) -> Result<Claim> {
        Ok(Claim {
            queue: self.name.queue.clone(),
            formats: self.formats(),
            token: bind::new_token()?,
            node: bind::node_id(&self.home.layout)?,
            slot: self.name.to_string(),
            worker: process::myself().to_string(),
            max_running: self.queue().map_or(0, |queue| queue.max_running),
            lease: self.home.config.node.lease.0,
        })
    }

    /// A commit whose answer was lost may have happened: the row says so.
    fn doubtful(&self, claim: &Claim, error: anyhow::Error) -> Result<Job> {
        self.store.find_by_token(&claim.token)?.ok_or(error)
    }

    /// Writes the end of a published run, and in the same transaction claims the next job, if this worker goes on. Nothing of
    /// the run is left to recover: its tree is proved gone and its file published.
    fn finish(
        &mut self,
        slot: &Held,
        job: &Job,
        (file, measured, fingerprint): (&Finished, Measured, Option<String>),
        until: Duration,
    ) -> Result<Option<Claimed>> {
        let mut run = job.run(Outcome::Ready, clock::now());
        run.published_at = Some(file.published_at);
        (run.measured, run.fingerprint) = (measured, fingerprint);
        run.detail = Some(exporter::last_words(&self.home.layout.log(&run.token))).filter(|words| !words.is_empty());
        // What stands in the way, trouble too, is met again once the run has ended.
        let goes_on = clock::monotonic() < until && matches!(self.obstacle(slot), Ok(None));
        let (settled, next) = if goes_on {
            self.finish_and_claim(slot, &run)?
        } else {
            (self.store.finish(&run, &bind::node_id(&self.home.layout)?)?, None)
        };
        fault::point("finish.after_commit")?;
        if settled == Settled::Lost {
            tracing::warn!("job {} was taken away from run {} after it had published", job.id, run.token);
        }
        Ok(next)
    }

    fn finish_and_claim(&mut self, slot: &Held, run: &Run) -> Result<(Settled, Option<Claimed>)> {
        let claim = self.claim()?;
        let (token, next) = (Some(run.token.clone()), Some(claim.token.clone()));
        slot.sign(Record { token, next, ..bind::own_record() })?;
        fault::point("work.before_claim")?;
        let sent = clock::since_boot();
        let (settled, job) = match self.store.finish_and_claim(run, &claim, clock::now()) {
            Ok(done) => done,
            Err(error) => (Settled::Forgotten, Some(self.doubtful(&claim, error)?)),
        };
        Ok((settled, job.map(|job| Claimed { job, token: claim.token, sent })))
    }

    /// Writes the end of a run; a published one may come back with the next.
    fn conclude(
        &mut self,
        slot: &Held,
        job: &Job,
        token: &str,
        conclusion: Conclusion,
        until: Duration,
    ) -> Result<Option<Claimed>> {
        let node = bind::node_id(&self.home.layout)?;
        match conclusion {
            Conclusion::Published { file, measured, fingerprint } => {
                return self.finish(slot, job, (&file, measured, fingerprint), until);
            }
            Conclusion::Fulfilled => self.forget_fulfilled(job, token)?,
            Conclusion::Failed { reason, detail, measured, is_undead, is_passing } => {
                let retry = if is_passing && !is_undead { self.retry_at(job)? } else { None };
                if self.stop.wait(DOUBT) && !is_undead {
                    self.stopped(job, token, &node)?;
                } else if let Some(at) = retry {
                    let mut run = job.run(Outcome::Retried, clock::now());
                    (run.reason, run.detail, run.measured) = (Some(reason), Some(detail), measured);
                    self.store.requeue(token, Again::Retry(at), Some((&run, &node)))?;
                } else {
                    self.fail(job, &node, reason, &detail, measured, is_undead)?;
                }
            }
            Conclusion::Again(again) => {
                self.store.requeue(token, again, None)?;
            }
            Conclusion::Unable(exit) => {
                self.exit = self.exit.graver(exit);
                self.store.requeue(token, Again::Unable(clock::now() + UNABLE), None)?;
            }
            Conclusion::Stopped => self.stopped(job, token, &node)?,
            Conclusion::Cancelled => {
                let row = self.store.find_by_token(token)?;
                if row.is_some_and(|row| row.newer_than.is_some() && row.newer_than >= row.cancel_at) {
                    self.store.requeue(token, Again::Wanted, None)?;
                } else {
                    self.fail(job, &node, Failure::Cancelled, "cancelled", Measured::default(), false)?;
                }
            }
            Conclusion::Fenced => {
                let why = format!("the database was away for so long that run {token} had to be ended");
                return Err(Refusal::try_later(why));
            }
            Conclusion::Lost => tracing::warn!("job {} was taken away from run {token}: nothing is published", job.id),
        }
        Ok(None)
    }

    /// The job needs no run: a ready file fulfils it. Under the cache lock, so that no sweep takes the file meanwhile.
    fn forget_fulfilled(&mut self, job: &Job, token: &str) -> Result<()> {
        let put_back = Again::Unable(clock::now());
        self.store.requeue(token, put_back, None)?;
        if let Some(lock) = self.home.lock_cache(Duration::from_secs(10))? {
            if let Some(file) = self.home.cache.fulfils(&job.filename, job.fulfilled_since(), clock::now())? {
                // As good as published when it was asked for; a refresh that came meanwhile still wants a newer one.
                self.store.forget(job.id, file.dates.modified.max(job.submitted_at))?;
            }
            lock.release()?;
        }
        Ok(())
    }

    fn fail(
        &mut self,
        job: &Job,
        node: &str,
        reason: Failure,
        detail: &str,
        measured: Measured,
        undead: bool,
    ) -> Result<()> {
        let mut run = job.run(Outcome::from(reason.state()), clock::now());
        (run.reason, run.detail, run.measured) = (Some(reason), Some(detail.to_owned()), measured);
        self.store.fail(&run, node, &FailureNote { reason, detail, keeps_token: undead })?;
        Ok(())
    }

    fn stopped(&mut self, job: &Job, token: &str, node: &str) -> Result<()> {
        match rules::after_stop(job, recover::bounds(self.home)) {
            Fate::Interrupted(detail) => {
                self.fail(job, node, Failure::Interrupted, &detail, Measured::default(), false)
            }
            Fate::Again | Fate::Cancelled | Fate::Fulfilled => {
                let run = job.run(Outcome::Stopped, clock::now());
                self.store.requeue(token, Again::Stopped, Some((&run, node)))?;
                Ok(())
            }
        }
    }

    fn retry_at(&self, job: &Job) -> Result<Option<chrono::DateTime<chrono::Utc>>> {
        let Some(format) = self.home.config.format.get(&job.key.format) else {
            return Ok(None);
        };
        let delays: Vec<Duration> = format.backoff.iter().map(|span| span.0).collect();
        let chance = chance(&bind::random_hex()?);
        Ok(rules::backoff(&delays, job.retries, chance).map(|delay| clock::now() + delay))
    }

    /// The run is over: its directory goes, or to the next run, and its log where no row names it any more; false when
    /// processes of it are left.
    fn clean_up(&mut self, job: &Job, token: &str, next: Option<&Claimed>) -> Result<bool> {
        let row = self.store.find(&job.filename)?;
        if row.as_ref().is_some_and(|row| row.phase.token() == Some(token)) {
            // Processes are left, and with them directory and log; `recover` goes on with this run.
            return Ok(false);
        }
        fault::point("clean.before_remove")?;
        let cache = &self.home.cache;
        let cleared = next.map_or_else(|| cache.remove_work(token), |next| cache.hand_on_work(token, &next.token));
        cleared.context("clearing the work directory")?;
        fault::point("clean.after_remove")?;
        if row.is_none_or(|row| row.last_run.as_deref() != Some(token)) {
            let _ = std::fs::remove_file(self.home.layout.log(token));
        }
        Ok(true)
    }
}

/// A number from 0 to 1, from random hexadecimal digits.
fn chance(digits: &str) -> f64 {
    f64::from(u16::from_str_radix(&digits[..4], 16).unwrap_or(0)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_lies_anywhere_between_none_and_certainty() {
        for (digits, expected) in [("0000f", 0.0), ("3333f", 0.2), ("cccc0", 0.8), ("ffff0", 1.0)] {
            assert!((chance(digits) - expected).abs() < 1e-9, "{digits}");
        }
    }

    #[test]
    fn the_first_record_names_what_the_slots_last_worker_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.0");
        let own = bind::own_record();
        let of = |boot: &str| Record {
            boot: boot.to_owned(),
            token: Some("first".into()),
            next: Some("second".into()),
            leader: own.holder,
            ..Record::default()
        };
        for (boot, leader) in [(own.boot.as_str(), own.holder), ("another boot", None)] {
            lock::try_take(&path).unwrap().expect("nobody else has it").sign(of(boot)).unwrap();
            let slot = lock::try_take(&path).unwrap().expect("its holder let go of it");
            let record = first_record(&slot).unwrap();
            assert_eq!(record, Record { leader, holder: own.holder, ..of(&own.boot) });
            slot.release().unwrap();
        }
        let blank = lock::try_take(&path).unwrap().unwrap();
        assert_eq!(first_record(&blank).unwrap(), own);
    }
}
