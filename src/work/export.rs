//! One export, from the claimed row to a published file or a truthful failure.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use regex::Regex;

use super::base::{self, Base};
use super::keep::{Keeper, look_at_row};
use super::watch::{Mark, Verdict, Watch, Watched};
use crate::bind::{self, Home};
use crate::cache::check::{self, Fault, Kind};
use crate::cache::{Finished, WorkDir};
use crate::clock;
use crate::config::{Check, Format, Limits, Span};
use crate::exit::{Exit, exit_of};
use crate::exporter::confine::Complaint;
use crate::exporter::{self, Call};
use crate::fault;
use crate::gates;
use crate::job::{Failure, Job, Measured};
use crate::key;
use crate::lock::{Held, Record};
use crate::process::{self, Ended, Tree};
use crate::stop::Stop;
use crate::store::{Again, Hold, Store};
use crate::template::{Template, Values};

/// The exit code of a precheck that finds nothing to export (`EX_NOINPUT` of `sysexits.h`).
const NOT_THERE: i32 = 66;

/// The pause before a publisher asks again a database that is away.
const AWAY: Duration = Duration::from_millis(500);

/// What programs say when the disk, or what they may have of it, is full (`strerror` of ENOSPC and EDQUOT).
const SAYS_FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// The longest that a fingerprint may take.
pub(crate) const FINGERPRINT_LIMIT: Span = Span(Duration::from_secs(30));

/// What a run came to, before it is written down.
#[derive(Debug)]
pub(super) enum Conclusion {
    /// The file is published.
    Published {
        /// Its size and date.
        file: Finished,
        /// What was measured.
        measured: Measured,
        /// What the fingerprint said before.
        fingerprint: Option<String>,
    },
    /// A ready file already fulfils the job.
    Fulfilled,
    /// The job failed.
    Failed {
        /// Why.
        reason: Failure,
        /// In words.
        detail: String,
        /// What was measured.
        measured: Measured,
        /// Processes are left.
        is_undead: bool,
        /// A further try is worth it, if the format lists delays.
        is_passing: bool,
    },
    /// The job goes back to its place.
    Again(Again),
    /// This machine could not run it now, for that reason; the job waits a moment, uncounted.
    Unable(Exit),
    /// This worker was told to stop.
    Stopped,
    /// The job was cancelled.
    Cancelled,
    /// The row is not this run's any more.
    Lost,
    /// It may be somebody else's soon, for the database was away for too long; the exporter was ended before that.
    Fenced,
}

/// One run: what it works on and with.
pub(super) struct Export<'a> {
    /// The queue.
    pub(super) home: &'a Home,
    /// The database.
    pub(super) store: &'a mut dyn Store,
    /// The slot.
    pub(super) slot: &'a Held,
    /// The stop flag.
    pub(super) stop: &'a Stop,
    /// The job.
    pub(super) job: &'a Job,
    /// The run's token.
    pub(super) token: &'a str,
    /// Keeps the run's lease, where machines share the queue.
    pub(super) keeper: Option<Keeper>,
}

/// A failure on the way, told apart from trouble of our own.
type Step<T> = Result<std::result::Result<T, Conclusion>>;

macro_rules! or_conclude {
    ($step:expr) => {
        match $step {
            Ok(value) => value,
            Err(conclusion) => return Ok(conclusion),
        }
    };
}

fn failed(reason: Failure, detail: impl Into<String>, measured: Measured) -> Conclusion {
    Conclusion::Failed { reason, detail: detail.into(), measured, is_undead: false, is_passing: false }
}

impl Export<'_> {
    /// Runs the exporter and publishes what it made.
    ///
    /// # Errors
    /// Trouble of our own (database, disk, kernel); the slot's record stays, and `recover` settles the run.
    pub(super) fn run(&mut self) -> Result<Conclusion> {
        if !is_named_by_its_key(self.job) {
            let detail = "the file name in its row is not the one of its key";
            return Ok(failed(Failure::OutputInvalid, detail, Measured::default()));
        }
        let since = self.job.fulfilled_since();
        if self.home.cache.fulfils(&self.job.filename, since, clock::now())?.is_some() {
            return Ok(Conclusion::Fulfilled);
        }
        let Some(format) = self.home.config.format.get(&self.job.key.format).cloned() else {
            // The format went between the claim and here; the job waits, and `check` and `explain` say for what.
            return Ok(Conclusion::Unable(Exit::ExporterMissing));
        };
        let work = match self.home.cache.make_work(self.token).context("making the work directory") {
            Ok(work) => work,
            Err(error) => return self.unable(error),
        };
        fault::point("work.after_mkdir")?;
        let input = match base::take(self.home, self.store, self.job, &work) {
            Ok(Base::None) => None,
            Ok(Base::Copy(path)) => Some(path),
            Ok(Base::Wait) => return Ok(Conclusion::Again(Again::Base)),
            Ok(Base::Failed(detail)) => {
                return Ok(failed(Failure::BaseFailed, detail, Measured::default()));
            }
            Err(error) => return self.unable(error),
        };
        self.make(&format, &work, input.as_deref())
    }

    fn make(&mut self, format: &Format, work: &WorkDir, input: Option<&Path>) -> Result<Conclusion> {
        let limits = self.home.config.format_limits(&self.job.key.format);
        let mut log = match exporter::create_log(&self.home.layout.log(self.token)).context("creating the log") {
            Ok(log) => log,
            Err(error) => return self.unable(error),
        };
        let output = work.output(&self.home.config.extension(&self.job.key.format));
        if !format.precheck.is_empty() {
            let called = self.call(format, &format.precheck, work, &output, input, &limits, &mut log)?;
            or_conclude!(self.judge_precheck(format, &or_conclude!(called)));
        }
        let fingerprint = or_conclude!(self.fingerprint(format, work, &output, &limits)?);
        let called = self.call(format, &format.command, work, &output, input, &limits, &mut log)?;
        let watched = or_conclude!(called);
        or_conclude!(self.judge(format, &watched));
        let path = or_conclude!(self.locate(format, work, output, watched.measured)?);
        let file = or_conclude!(self.check(&path, &limits, watched.measured)?);
        if !format.verify.is_empty() {
            let verified = self.call(format, &format.verify, work, &path, input, &limits, &mut log)?;
            or_conclude!(self.judge_verify(&or_conclude!(verified)));
        }
        Ok(match self.publish(&path, &file, watched.measured)? {
            Conclusion::Published { file, measured, .. } => Conclusion::Published { file, measured, fingerprint },
            other => other,
        })
    }

    /// Asks what the file is to be made from looks like now, before it is: what changes meanwhile makes it stale. A command
    /// that fails says nothing, and the file stays fresh for its whole age.
    fn fingerprint(&mut self, format: &Format, work: &WorkDir, output: &Path, limits: &Limits) -> Step<Option<String>> {
        if format.fingerprint.is_empty() {
            return Ok(Ok(None));
        }
        let path = work.root().join("fingerprint");
        let mut said = exporter::create_log(&path).context("creating the log of the fingerprint")?;
        let called = self.call(format, &format.fingerprint, work, output, None, &briefly(limits), &mut said)?;
        let watched = match called {
            Ok(watched) => watched,
            Err(conclusion) => return Ok(Err(conclusion)),
        };
        match watched.verdict {
            Verdict::Ended(Ended::Code(0)) if !watched.is_undead => {
                Ok(Ok(exporter::fingerprint(&path).context("reading the fingerprint")?))
            }
            Verdict::Cancelled | Verdict::Stopped | Verdict::Lost => Ok(self.judge(format, &watched).map(|()| None)),
            _ if watched.is_undead => Ok(self.judge(format, &watched).map(|()| None)),
            verdict => {
                tracing::warn!("the fingerprint of job {} is not known: {verdict:?}", self.job.id);
                Ok(Ok(None))
            }
        }
    }

    /// Starts one command of the format and watches it to its end.
    #[expect(clippy::too_many_arguments, reason = "one call each for the command and for verify")]
    fn call(
        &mut self,
        format: &Format,
        command: &[String],
        work: &WorkDir,
        output: &Path,
        input: Option<&Path>,
        limits: &Limits,
        log: &mut File,
    ) -> Step<Watched> {
        let (out, tmp) = (work.out(), work.tmp());
        let call = Call {
            format,
            command,
            values: values(self.job, output, input, &out, &tmp),
            variables: variables(self.job, self.token, work, output, input),
            limits,
            root: work.root(),
            home: work.home(),
            runtime: work.runtime(),
        };
        let (mut command, complaint) = match call.build(log) {
            Ok(built) => built,
            Err(error) if matches!(exit_of(&error), Exit::ExporterMissing | Exit::Config) => {
                tracing::warn!("job {} waits: {error:#}", self.job.id);
                return Ok(Err(Conclusion::Unable(exit_of(&error))));
            }
            Err(error) => return Err(error),
        };
        let mut tree = match self.spawn(&mut command)? {
            Ok(tree) => tree,
            Err(conclusion) => return Ok(Err(conclusion)),
        };
        drop(command);
        self.sign(&tree)?;
        process::prefer_as_oom_victim(tree.identity().pid);
        set_nice(&tree, limits.nice);
        fault::point("work.after_spawn")?;
        let (token, progress) = (self.token.to_owned(), work.progress());
        let store = &mut *self.store;
        let mut last = String::new();
        let keeper = self.keeper.as_ref();
        let mut mark = || match keeper {
            Some(keeper) => keeper.mark(),
            None => look_at_row(store, &token, &progress, &mut last),
        };
        let watch = Watch { limits, log, work, stop: self.stop, mark: &mut mark };
        let watched = watch.run(&mut tree)?;
        fault::point("work.after_exit")?;
        Ok(self.unless_unconfined(watched, complaint))
    }

    /// Starts the exporter, unless the job may be somebody else's.
    fn spawn(&self, command: &mut std::process::Command) -> Step<Tree> {
        fault::point("work.before_spawn")?;
        if let Some(fenced) = self.is_fenced() {
            return Ok(Err(fenced));
        }
        match Tree::spawn(command) {
            Ok(tree) => Ok(Ok(tree)),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::TOOBIG.raw_os_error()) => {
                let detail = "exit 126 (the arguments are too long)";
                Ok(Err(failed(Failure::ExitNonzero, detail, Measured::default())))
            }
            Err(error) if cannot_be_executed(&error) => {
                tracing::warn!("cannot run job {} now: {error}", self.job.id);
                Ok(Err(Conclusion::Unable(Exit::ExporterMissing)))
            }
            Err(error) => self.unable(anyhow::Error::new(error).context("starting the exporter")).map(Err),
        }
    }

    /// Where the walls could not be put up no exporter ran, and the ending is that of this program's own stage.
    fn unless_unconfined(
        &self,
        watched: Watched,
        complaint: Option<Complaint>,
    ) -> std::result::Result<Watched, Conclusion> {
        let Verdict::Ended(Ended::Code(code)) = watched.verdict else {
            return Ok(watched);
        };
        match complaint.and_then(Complaint::read) {
            Some(why) => {
                tracing::warn!("job {} waits: {why}", self.job.id);
                Err(Conclusion::Unable(Exit::from_code(code)))
            }
            None => Ok(watched),
        }
    }

    /// The slot's record names the exporter, so that whoever recovers the slot finds its tree.
    fn sign(&self, tree: &Tree) -> Result<()> {
        let token = Some(self.token.to_owned());
        let record = Record { token, leader: Some(tree.identity()), ..bind::own_record() };
        self.slot.sign(record).context("writing the slot's record")
    }

    /// What the way the exporter ended means for the job.
    fn judge(&self, format: &Format, watched: &Watched) -> std::result::Result<(), Conclusion> {
        let measured = watched.measured;
        let limits = self.home.config.format_limits(&self.job.key.format);
        let words = exporter::last_words(&self.home.layout.log(self.token));
        let deaf = if watched.was_deaf { "; it ignored TERM and was ended by KILL" } else { "" };
        let told = |how: String| {
            if words.is_empty() { format!("{how}{deaf}") } else { format!("{how}{deaf}: {words}") }
        };
        if watched.is_undead {
            let detail = told("signal 9 did not end all of its processes".to_owned());
            return Err(Conclusion::Failed {
                reason: Failure::WouldNotDie,
                detail,
                measured,
                is_undead: true,
                is_passing: false,
            });
        }
        let of_limit = |reason, what: String| Err(failed(reason, told(what), measured));
        match watched.verdict {
            Verdict::Ended(Ended::Code(code)) if format.accept_exit.contains(&code) => Ok(()),
            Verdict::Ended(ended) => Err(self.judge_ending(format, ended, &words, measured)),
            Verdict::TimedOut => {
                let detail = told(format!("time limit of {}", limits.timeout));
                let is_passing = format.retry_timeouts;
                Err(Conclusion::Failed { reason: Failure::TimedOut, detail, measured, is_undead: false, is_passing })
            }
            Verdict::OutOfMemory => of_limit(Failure::OutOfMemory, format!("memory limit of {}", limits.max_memory)),
            Verdict::CpuExhausted => {
                of_limit(Failure::CpuExhausted, format!("processor time limit of {}", limits.max_cpu))
            }
            Verdict::TooManyProcesses => {
                of_limit(Failure::TooManyProcesses, format!("limit of {} processes", limits.max_processes))
            }
            Verdict::OutputTooLarge => {
                of_limit(Failure::OutputTooLarge, format!("output limit of {}", limits.max_output))
            }
            Verdict::Cancelled => Err(Conclusion::Cancelled),
            Verdict::Stopped => Err(Conclusion::Stopped),
            Verdict::Lost => Err(Conclusion::Lost),
            Verdict::Fenced => Err(Conclusion::Fenced),
        }
    }

    fn judge_ending(&self, format: &Format, ended: Ended, words: &str, measured: Measured) -> Conclusion {
        let (reason, how, code) = match ended {
            Ended::Code(code) => (Failure::ExitNonzero, describe_code(code), Some(code)),
            Ended::Signal(signal) => (Failure::KilledBySignal, describe_signal(signal), None),
        };
        let reason = if self.is_disk_full(words) { Failure::NoSpace } else { reason };
        let detail = if words.is_empty() { how } else { format!("{how}: {words}") };
        let by_code = code.is_some_and(|code| format.transient_exit.contains(&code));
        let by_words = || {
            let patterns = format.transient_output.iter().filter_map(|pattern| Regex::new(pattern).ok());
            code.is_some() && patterns.into_iter().any(|pattern| pattern.is_match(words))
        };
        let is_passing = by_code || by_words();
        Conclusion::Failed { reason, detail, measured, is_undead: false, is_passing }
    }

    /// "Not there" fails at once and for good; any other failure is one of the exporter.
    fn judge_precheck(&self, format: &Format, watched: &Watched) -> std::result::Result<(), Conclusion> {
        if watched.verdict == Verdict::Ended(Ended::Code(NOT_THERE)) && !watched.is_undead {
            let detail = format!("precheck: exit {NOT_THERE}{}", self.words());
            return Err(failed(Failure::SourceMissing, detail, watched.measured));
        }
        self.judge(&Format { accept_exit: vec![0], ..format.clone() }, watched)
    }

    fn judge_verify(&self, watched: &Watched) -> std::result::Result<(), Conclusion> {
        match self.judge(&Format { transient_exit: Vec::new(), ..Format::default() }, watched) {
            Err(Conclusion::Failed {
                reason: Failure::ExitNonzero | Failure::KilledBySignal,
                detail,
                measured,
                ..
            }) => Err(failed(Failure::OutputInvalid, format!("verify: {detail}"), measured)),
            other => other,
        }
    }

    /// The file that the exporter was to make.
    fn locate(&self, format: &Format, work: &WorkDir, output: PathBuf, measured: Measured) -> Step<PathBuf> {
        let Some(pattern) = &format.produces else {
            return Ok(Ok(output));
        };
        let template = Template::parse(pattern).map_err(|unknown| anyhow::anyhow!("{unknown}"))?;
        let (out, tmp) = (work.out(), work.tmp());
        let title = glob::Pattern::escape(&self.job.key.title);
        let values = Values { title: &title, ..values(self.job, &output, None, &out, &tmp) };
        let found = exporter::produced(Path::new(&template.render(&values))).context("looking for the output")?;
        Ok(found.map_err(|words| {
            let is_several = words.contains("files match");
            let reason = if is_several { Failure::OutputInvalid } else { Failure::OutputMissing };
            failed(reason, but(measured, &format!("{words}{}", self.words())), measured)
        }))
    }

    fn words(&self) -> String {
        let words = exporter::last_words(&self.home.layout.log(self.token));
        if words.is_empty() { words } else { format!(": {words}") }
    }

    /// Whether the bytes are a whole document of their kind.
    fn check(&self, path: &Path, limits: &Limits, measured: Measured) -> Step<File> {
        let kind = match self.home.config.check_of(&self.job.key.format) {
            Check::Epub => Kind::Epub,
            Check::Pdf => Kind::Pdf,
            Check::Mobi => Kind::Mobi,
            Check::Azw3 => Kind::Azw3,
            Check::None => Kind::Any,
        };
        fault::point("work.before_check")?;
        let faulty = match check::check(path, kind, limits.max_output.0).context("checking the output")? {
            Ok(checked) => return Ok(Ok(checked.file)),
            Err(faulty) => faulty,
        };
        let words = self.words();
        let reason = match &faulty {
            _ if self.is_disk_full(&words) => Failure::NoSpace,
            Fault::Missing => Failure::OutputMissing,
            Fault::Empty => Failure::OutputEmpty,
            Fault::TooLarge { .. } => Failure::OutputTooLarge,
            Fault::NotRegular | Fault::Linked | Fault::Invalid(_) => Failure::OutputInvalid,
        };
        Ok(Err(failed(reason, but(measured, &format!("{faulty}{words}")), measured)))
    }

    fn is_disk_full(&self, words: &str) -> bool {
        SAYS_FULL.iter().any(|says| words.contains(says)) || gates::has_no_room(&self.home.layout.cache)
    }

    /// Steps (a) and (b) of publishing: the token is still ours, the name appears. Step (c) is the caller's.
    fn publish(&mut self, path: &Path, file: &File, measured: Measured) -> Result<Conclusion> {
        let cache = &self.home.cache;
        let out_of_room = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(error),
            _ => Err(error),
        };
        let no_space = |error: io::Error| failed(Failure::NoSpace, but(measured, &error.to_string()), measured);
        let mut finished = match cache.prepare(path, file, clock::now()).and_then(|finished| {
            cache.make_shard(&self.job.filename)?;
            Ok(finished)
        }) {
            Ok(finished) => finished,
            Err(error) => return Ok(no_space(out_of_room(error).context("preparing the file")?)),
        };
        fault::point("publish.before_lock")?;
        let lock = loop {
            match self.store.renew(self.token, self.home.config.node.lease.0) {
                Ok(Hold::Mine) => {}
                Ok(Hold::Cancelled) => return Ok(Conclusion::Cancelled),
                Ok(Hold::Lost) => return Ok(Conclusion::Lost),
                Err(error) if self.may_wait(&error) => {
                    self.stop.wait(AWAY);
                    continue;
                }
                Err(error) => return Err(error),
            }
            // The file is complete: whoever publishes goes on trying.
            if let Some(lock) = self.home.lock_cache(Duration::from_secs(1))? {
                break lock;
            }
        };
        let renamed = cache.rename(&lock, &mut finished, &self.job.filename, clock::now());
        lock.release()?;
        match renamed {
            Ok(()) => {}
            Err(error) => return Ok(no_space(out_of_room(error).context("publishing the file")?)),
        }
        cache.sync_shard(&self.job.filename).context("syncing the cache directory")?;
        fault::point("publish.after_dir_sync")?;
        let measured = Measured { bytes: Some(finished.bytes), ..measured };
        Ok(Conclusion::Published { file: finished, measured, fingerprint: None })
    }

    /// Whether the database may come back before the lease must end.
    fn may_wait(&self, error: &anyhow::Error) -> bool {
        exit_of(error) == Exit::TryLater
            && !self.stop.is_asked()
            && self.keeper.as_ref().is_some_and(|keeper| keeper.mark() == Mark::None)
    }

    /// Whether the job is this run's no longer, or not for long: then no exporter is started any more.
    fn is_fenced(&self) -> Option<Conclusion> {
        match self.keeper.as_ref()?.mark() {
            Mark::None | Mark::Cancelled => None,
            Mark::Lost => Some(Conclusion::Lost),
            Mark::Fenced => Some(Conclusion::Fenced),
        }
    }

    /// This machine is short of something: the job waits, uncounted. Anything else is trouble of our own.
    fn unable(&self, error: anyhow::Error) -> Result<Conclusion> {
        if exit_of(&error) != Exit::TryLater {
            return Err(error);
        }
        tracing::warn!("cannot run job {} now: {error:#}", self.job.id);
        Ok(Conclusion::Unable(Exit::TryLater))
    }
}

/// Whether a program was found and is none that this machine can execute: its interpreter is missing, say.
fn cannot_be_executed(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::ACCESS | Errno::NOEXEC | Errno::TXTBSY))
}

/// Front ends may write the database: a name that is not made from the key is not published.
fn is_named_by_its_key(job: &Job) -> bool {
    key::parse_filename(&job.filename).is_some_and(|parts| job.key.filename(parts.ext) == job.filename)
}

fn values<'v>(job: &'v Job, output: &'v Path, input: Option<&'v Path>, out: &'v Path, tmp: &'v Path) -> Values<'v> {
    let key = &job.key;
    Values {
        title: &key.title,
        lang: &key.lang,
        font: &key.font,
        format: &key.format,
        options: &key.options,
        output,
        input,
        workdir: out,
        tmpdir: tmp,
        filename: &job.filename,
        job_id: job.id,
        attempt: job.attempts,
        state: job.state().text(),
        reason: "",
        detail: "",
        meta: "",
    }
}

fn variables(
    job: &Job,
    token: &str,
    work: &WorkDir,
    output: &Path,
    input: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    let key = &job.key;
    let mut variables: Vec<(&'static str, OsString)> = vec![
        (process::MARKER, token.into()),
        ("EXPORT_QUEUE_JOB_ID", job.id.to_string().into()),
        ("EXPORT_QUEUE_ATTEMPT", job.attempts.to_string().into()),
        ("EXPORT_QUEUE_TITLE", (&key.title).into()),
        ("EXPORT_QUEUE_LANG", (&key.lang).into()),
        ("EXPORT_QUEUE_FONT", (&key.font).into()),
        ("EXPORT_QUEUE_FORMAT", (&key.format).into()),
        ("EXPORT_QUEUE_OUTPUT", output.into()),
        ("EXPORT_QUEUE_PROGRESS", work.progress().into()),
    ];
    variables.extend(input.map(|input| ("EXPORT_QUEUE_INPUT", input.into())));
    variables
}

/// The limits of a fingerprint.
fn briefly(limits: &Limits) -> Limits {
    Limits { timeout: limits.timeout.min(FINGERPRINT_LIMIT), ..limits.clone() }
}

fn set_nice(tree: &Tree, nice: i32) {
    if nice != 0 {
        let pid = rustix::process::Pid::from_raw(tree.identity().pid);
        if let Err(error) = rustix::process::setpriority_process(pid, nice) {
            tracing::debug!("cannot set nice {nice}: {error}");
        }
    }
}

/// The detail of a run whose exit code was accepted and whose file was not.
fn but(measured: Measured, what: &str) -> String {
    format!("{}, but {what}", describe_code(measured.exit_code.unwrap_or_default()))
}

fn describe_code(code: i32) -> String {
    match code {
        129..=192 => format!("exit {code} (probably {})", describe_signal(code - 128)),
        _ => format!("exit {code}"),
    }
}

fn describe_signal(signal: i32) -> String {
    let meaning = match signal {
        6 => " (aborted)",
        9 => " (killed, perhaps for want of memory)",
        11 => " (crashed)",
        15 => " (asked to end)",
        24 => " (processor time limit)",
        25 => " (file size limit)",
        _ => "",
    };
    format!("signal {signal}{meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_has_no_more_time_than_its_format_and_half_a_minute() {
        let of = |secs| Limits { timeout: Span(Duration::from_secs(secs)), nice: 7, ..Limits::default() };
        assert_eq!(briefly(&of(300)), of(30));
        assert_eq!(briefly(&of(10)), of(10));
    }

    #[test]
    fn only_the_program_itself_makes_it_one_that_cannot_be_executed() {
        use rustix::io::Errno;
        let cannot = |errno: Errno| cannot_be_executed(&errno.into());
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::TXTBSY] {
            assert!(cannot(errno), "{errno}");
        }
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE] {
            assert!(!cannot(errno), "the machine has run out of something: {errno}");
        }
    }
}
