//! Errands: commands that are run beside exports, one after another, by a process of their own.
//!
//! A tick hands the slot `@errands` over to that process as it hands other slots to workers, and waits for nobody: neither
//! a tick nor an export is ever held up. As with a worker, the slot's record names what runs, so that whoever finds the
//! lock free ends what a dead one left behind; every command has a private directory, a clean environment, empty standard
//! input, a group of its own and a time limit, and its whole tree is ended.

mod freshness;
mod notify;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};

use crate::bind::{self, Home};
use crate::cache::WorkDir;
use crate::clock;
use crate::config::{Format, Limits};
use crate::exit::{Exit, exit_of};
use crate::exporter::confine::Complaint;
use crate::exporter::{self, Call};
use crate::fault;
use crate::key::Key;
use crate::layout::SlotName;
use crate::lock::{Held, Record};
use crate::process::{self, Ended, Tree};
use crate::recover::{self, Recovered};
use crate::stop::Stop;
use crate::store::Store;
use crate::template::Values;
use crate::work::{self, Mark, Verdict, Watch};

/// After how long this process leaves the rest to its successor, which reads the configuration anew.
const WINDOW: Duration = Duration::from_secs(300);

/// The slot of errands: no queue can have that name, so it is none of the slots that are counted.
pub fn slot() -> SlotName {
    SlotName { queue: "@errands".to_owned(), number: 0 }
}

/// Whether there is something to do.
///
/// # Errors
/// The database cannot be read.
pub fn is_due(home: &Home, store: &dyn Store, now: DateTime<Utc>) -> Result<bool> {
    Ok(notify::is_due(home, store, now)? || freshness::next(home, store, now)?.is_some())
}

/// Does what is due, with the slot as standard input.
///
/// # Errors
/// Trouble of our own; the slot's record then names what `recover` is to end.
pub fn run(home: &Home) -> Result<Exit> {
    let (slot, stop) = work::take_over(home, &slot())?;
    let mut store = home.open_as_owner()?;
    if let Recovered::Undead(_) = recover::recover(home, &mut *store, &slot)? {
        return Ok(Exit::TryLater);
    }
    slot.sign(bind::own_record())?;
    let until = clock::monotonic() + WINDOW;
    let mut errands = Errands { home, store: &mut *store, slot: &slot, stop: &stop, refusing: BTreeSet::new() };
    while !stop.is_asked() && clock::monotonic() < until {
        let step = match errands.tell_one()? {
            Step::Idle => errands.check_one()?,
            step @ (Step::Done | Step::Undead) => step,
        };
        match step {
            Step::Done => {}
            Step::Idle => break,
            // The record stays: it keeps the slot for the processes that are left.
            Step::Undead => return Ok(Exit::TryLater),
        }
    }
    slot.release()?;
    Ok(Exit::Done)
}

/// What one look came to.
enum Step {
    /// Something was done; there may be more.
    Done,
    /// Nothing is due.
    Idle,
    /// Processes of a command do not die.
    Undead,
}

struct Errands<'a> {
    home: &'a Home,
    store: &'a mut dyn Store,
    slot: &'a Held,
    stop: &'a Stop,
    /// Listeners that failed a moment ago: the others go first.
    refusing: BTreeSet<String>,
}

/// One command to be run.
struct Errand<'a> {
    /// Whose environment the command has.
    format: &'a Format,
    command: &'a [String],
    limits: Limits,
    key: &'a Key,
    filename: &'a str,
    job_id: i64,
    attempts: u32,
    /// What is told: state, reason, detail and meta.
    ending: [&'a str; 4],
    variables: Vec<(&'static str, OsString)>,
}

/// How a command ended.
enum Called {
    /// With 0, and the hash of what it said.
    Well(Option<String>),
    /// Otherwise, in words.
    Badly(String),
    /// This process was told to stop, and ended the command.
    Stopped,
    /// Something of it survived KILL.
    Undead,
}

impl Errands<'_> {
    /// Runs one command to its end and takes away what it leaves.
    fn call(&self, errand: &Errand<'_>) -> Result<Called> {
        let token = bind::new_token()?;
        self.slot.sign(Record { token: Some(token.clone()), ..bind::own_record() })?;
        let called = self.call_as(errand, &token)?;
        if !matches!(called, Called::Undead) {
            self.home.cache.remove_work(&token).context("removing the work directory")?;
            // A log that stays is taken by the next tick.
            let _ = std::fs::remove_file(self.home.layout.log(&token));
            self.slot.sign(bind::own_record())?;
        }
        Ok(called)
    }

    fn call_as(&self, errand: &Errand<'_>, token: &str) -> Result<Called> {
        let work = self.home.cache.make_work(token).context("making the work directory")?;
        let mut log = exporter::create_log(&self.home.layout.log(token)).context("creating the log")?;
        let (out, tmp, output) = (work.out(), work.tmp(), self.home.layout.published(errand.filename));
        let [state, reason, detail, meta] = errand.ending;
        let Key { title, lang, font, format, options } = errand.key;
        let (job_id, filename, attempt) = (errand.job_id, errand.filename, errand.attempts);
        let values = Values {
            title,
            lang,
            font,
            format,
            options,
            output: &output,
            input: None,
            workdir: &out,
            tmpdir: &tmp,
            filename,
            job_id,
            attempt,
            state,
            reason,
            detail,
            meta,
        };
        let mut variables = vec![(process::MARKER, OsString::from(token))];
        variables.extend(errand.variables.iter().cloned());
        let (home, runtime) = (work.home(), work.runtime());
        let (limits, root) = (&errand.limits, work.root());
        let call =
            Call { format: errand.format, command: errand.command, values, variables, limits, root, home, runtime };
        let (mut command, complaint) = match call.build(&log) {
            Ok(built) => built,
            Err(error) if matches!(exit_of(&error), Exit::ExporterMissing | Exit::Config) => {
                return Ok(Called::Badly(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        fault::point("errand.before_spawn")?;
        let mut tree = match Tree::spawn(&mut command) {
            Ok(tree) => tree,
            Err(error) => return Ok(Called::Badly(format!("cannot be started: {error}"))),
        };
        drop(command);
        let leader = Some(tree.identity());
        self.slot.sign(Record { token: Some(token.to_owned()), leader, ..bind::own_record() })?;
        let called = self.watch(&mut tree, &mut log, (&work, token), limits)?;
        fault::point("errand.after_exit")?;
        Ok(complaint.and_then(Complaint::read).map_or(called, Called::Badly))
    }

    fn watch(
        &self,
        tree: &mut Tree,
        log: &mut File,
        (work, token): (&WorkDir, &str),
        limits: &Limits,
    ) -> Result<Called> {
        let watch = Watch { limits, log, work, stop: self.stop, mark: &mut || Mark::None };
        let watched = watch.run(tree)?;
        if watched.is_undead {
            return Ok(Called::Undead);
        }
        let how = match watched.verdict {
            Verdict::Ended(Ended::Code(0)) => {
                let said = exporter::fingerprint(&self.home.layout.log(token)).context("reading the log")?;
                return Ok(Called::Well(said));
            }
            Verdict::Stopped => return Ok(Called::Stopped),
            Verdict::Ended(Ended::Code(code)) => format!("exit {code}"),
            Verdict::Ended(Ended::Signal(signal)) => format!("signal {signal}"),
            Verdict::TimedOut => format!("time limit of {}", limits.timeout),
            Verdict::OutOfMemory => format!("memory limit of {}", limits.max_memory),
            Verdict::OutputTooLarge => format!("output limit of {}", limits.max_output),
            Verdict::CpuExhausted
            | Verdict::TooManyProcesses
            | Verdict::Cancelled
            | Verdict::Lost
            | Verdict::Fenced => "ended".to_owned(),
        };
        let words = exporter::last_words(&self.home.layout.log(token));
        Ok(Called::Badly(if words.is_empty() { how } else { format!("{how}: {words}") }))
    }
}
