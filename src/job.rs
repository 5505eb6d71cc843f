//! Jobs, runs, states and reasons: the words that the database, the flows and the faces share.
//!
//! A job is a wish for a file. There is no "completed": a job whose file exists is deleted, its record is a [`Run`].

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use crate::key::Key;

/// Declares an enum whose text stands beside each variant, for Display, `FromStr`, SQL and JSON alike.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.text())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    other => Err(format!("{other} is none of: {}", [$($text),+].join(", "))),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.text())
            }
        }
    };
}

words! {
    /// What a row says of its job; stored as 0 to 3 in this order.
    State {
        /// Waits for a worker.
        Queued = "queued",
        /// A worker has claimed it.
        Started = "started",
        /// Failed on its time limit.
        FailedTimeout = "failed_timeout",
        /// Failed otherwise.
        FailedUnknown = "failed_unknown",
    }
}

impl State {
    /// The number under which the state is stored, 0 to 3.
    pub fn number(self) -> i64 {
        self as i64
    }

    /// The state stored as `number`, if it is one.
    pub fn from_number(number: i64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|index| Self::ALL.get(index)).copied()
    }
}

words! {
    /// Why a job failed.
    Failure {
        /// Its time was up.
        TimedOut = "timed_out",
        /// The exporter ended with a code that is not accepted.
        ExitNonzero = "exit_nonzero",
        /// A signal that we did not send ended the exporter.
        KilledBySignal = "killed_by_signal",
        /// The tree used more memory than it may.
        OutOfMemory = "out_of_memory",
        /// The tree used more processor time than it may.
        CpuExhausted = "cpu_exhausted",
        /// The tree had more processes than it may.
        TooManyProcesses = "too_many_processes",
        /// The disk was full.
        NoSpace = "no_space",
        /// Something of the tree survived KILL.
        WouldNotDie = "would_not_die",
        /// The precheck says that there is nothing to export.
        SourceMissing = "source_missing",
        /// The exporter left no file.
        OutputMissing = "output_missing",
        /// The exporter left an empty file.
        OutputEmpty = "output_empty",
        /// The file does not pass its checks.
        OutputInvalid = "output_invalid",
        /// The file, or what lies beside it, is larger than it may be.
        OutputTooLarge = "output_too_large",
        /// Its workers died, or were told to stop, too often.
        Interrupted = "interrupted",
        /// The format it is made from failed.
        BaseFailed = "base_failed",
        /// Nobody waits for it any more.
        WaitExpired = "wait_expired",
        /// A person cancelled it.
        Cancelled = "cancelled",
    }
}

impl Failure {
    /// The state of a job that failed for this reason.
    pub fn state(self) -> State {
        match self {
            Self::TimedOut | Self::WouldNotDie => State::FailedTimeout,
            _ => State::FailedUnknown,
        }
    }
}

words! {
    /// Why a queued job is not running; of several the first here is told.
    Waiting {
        /// Its queue is paused.
        Paused = "paused",
        /// All slots of its queue are taken.
        NoFreeSlot = "no_free_slot",
        /// The machine is short of memory.
        LowMemory = "low_memory",
        /// The machine is busy.
        HighLoad = "high_load",
        /// The disk is nearly full.
        LowDisk = "low_disk",
        /// It waits for its next try.
        BackingOff = "backing_off",
        /// The format it is made from is not there yet.
        WaitingForBase = "waiting_for_base",
        /// It was asked for at a later time.
        NotBefore = "not_before",
        /// Nobody has dispatched for two minutes.
        NoDispatcher = "no_dispatcher",
        /// The program that makes this format is not installed, or its format is not configured any more.
        ExporterMissing = "exporter_missing",
    }
}

words! {
    /// How a run ended.
    Outcome {
        /// A file was published.
        Ready = "ready",
        /// The job failed on its time limit.
        FailedTimeout = "failed_timeout",
        /// The job failed otherwise.
        FailedUnknown = "failed_unknown",
        /// It failed and the job goes on after a delay.
        Retried = "retried",
        /// Its worker died.
        Interrupted = "interrupted",
        /// Its worker was told to stop.
        Stopped = "stopped",
    }
}

impl From<State> for Outcome {
    fn from(state: State) -> Self {
        if state == State::FailedTimeout { Self::FailedTimeout } else { Self::FailedUnknown }
    }
}

/// What is true of a job in its state, and only then.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Waits; until `later`, if that is set.
    Queued {
        /// When it may start, and why not before.
        later: Option<(DateTime<Utc>, Waiting)>,
    },
    /// A worker has it.
    Started {
        /// The right to write this row.
        token: String,
        /// Which slot runs it, as `queue.number`.
        slot: String,
        /// The worker, as `pid.start`.
        worker: String,
        /// When it was claimed.
        since: DateTime<Utc>,
        /// When its time is up.
        deadline: DateTime<Utc>,
        /// What the exporter last wrote about its progress.
        progress: Option<String>,
    },
    /// It failed.
    Failed {
        /// Why.
        reason: Failure,
        /// Exit code or signal, then the last lines of output.
        detail: String,
        /// When.
        at: DateTime<Utc>,
        /// The run whose processes are not gone yet; such a row is not to be touched.
        token: Option<String>,
    },
}

impl Phase {
    /// The token of the run that may write the row.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Queued { .. } => None,
            Self::Started { token, .. } => Some(token),
            Self::Failed { token, .. } => token.as_deref(),
        }
    }
}

/// A row saying that a file is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number, never used twice.
    pub id: i64,
    /// What is wanted.
    pub key: Key,
    /// The file's name, made from the key; unique.
    pub filename: String,
    /// The name of the file it is made from.
    pub base_filename: Option<String>,
    /// The lane it waits in.
    pub queue: String,
    /// Who asked first, if they said.
    pub client: Option<String>,
    /// What the caller wants to have back, JSON.
    pub meta: Option<String>,
    /// Lower goes first among jobs submitted together, 0 to 1000.
    pub priority: i64,
    /// The stored place in the order of its queue: a virtual time in milliseconds.
    pub rank: i64,
    /// When it was asked for.
    pub submitted_at: DateTime<Utc>,
    /// A file published before this does not fulfil it (`--refresh`).
    pub newer_than: Option<DateTime<Utc>>,
    /// When somebody asked to end it.
    pub cancel_at: Option<DateTime<Utc>>,
    /// Runs begun since it was submitted.
    pub attempts: u32,
    /// Delays of `backoff` that were used.
    pub retries: u32,
    /// Workers that died with it.
    pub interruptions: u32,
    /// Workers that were told to stop with it.
    pub stops: u32,
    /// Times it was put back for its base.
    pub base_waits: u32,
    /// The token of its last run: names its log.
    pub last_run: Option<String>,
    /// What is true in its state.
    pub phase: Phase,
}

impl Job {
    /// The state that is stored.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Queued { .. } => State::Queued,
            Phase::Started { .. } => State::Started,
            Phase::Failed { reason, .. } => reason.state(),
        }
    }

    /// The record of its present run, ending now.
    pub fn run(&self, outcome: Outcome, now: DateTime<Utc>) -> Run {
        let started_at = if let Phase::Started { since, .. } = &self.phase { *since } else { now };
        Run {
            token: self.last_run.clone().unwrap_or_default(),
            job_id: self.id,
            key: self.key.clone(),
            filename: self.filename.clone(),
            queue: self.queue.clone(),
            client: self.client.clone(),
            meta: self.meta.clone(),
            outcome,
            reason: None,
            detail: None,
            submitted_at: self.submitted_at,
            started_at,
            finished_at: now,
            published_at: None,
            measured: Measured::default(),
            fingerprint: None,
        }
    }

    /// From when on a published file fulfils this job.
    pub fn wanted_since(&self) -> DateTime<Utc> {
        self.newer_than.map_or(self.submitted_at, |newer| newer.max(self.submitted_at))
    }

    /// Since when a file must have been published to fulfil the job. A plain wish is only stored where nobody saw a ready
    /// file, so that any ready one has appeared since: its date may be older than the wish, for it is set before the
    /// file is synced and gets its name.
    pub fn fulfilled_since(&self) -> DateTime<Utc> {
        self.newer_than.unwrap_or_default()
    }
}

/// One attempt at a job, as history keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The run's token.
    pub token: String,
    /// The job it was for.
    pub job_id: i64,
    /// What was wanted.
    pub key: Key,
    /// The file's name.
    pub filename: String,
    /// The lane.
    pub queue: String,
    /// Who asked first.
    pub client: Option<String>,
    /// What the caller wants to have back.
    pub meta: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if it failed.
    pub reason: Option<Failure>,
    /// Exit code or signal and the last lines of output.
    pub detail: Option<String>,
    /// When the job was asked for.
    pub submitted_at: DateTime<Utc>,
    /// When the job was claimed.
    pub started_at: DateTime<Utc>,
    /// When the run ended.
    pub finished_at: DateTime<Utc>,
    /// The mtime of the published file.
    pub published_at: Option<DateTime<Utc>>,
    /// The facts that the worker measured.
    pub measured: Measured,
    /// What the fingerprint of its format said before it began, hashed.
    pub fingerprint: Option<String>,
}

/// What statistics need of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The format.
    pub format: String,
    /// The language.
    pub lang: String,
    /// Who asked first.
    pub client: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if it failed.
    pub reason: Option<Failure>,
    /// When the job was asked for.
    pub submitted_at: DateTime<Utc>,
    /// When the job was claimed.
    pub started_at: DateTime<Utc>,
    /// When the run ended.
    pub finished_at: DateTime<Utc>,
    /// The published file's size in bytes.
    pub bytes: Option<u64>,
    /// The largest memory (PSS of the tree, bytes) that was seen.
    pub peak_memory: Option<u64>,
    /// Processor time of the tree in milliseconds.
    pub cpu_millis: Option<u64>,
}

/// What a worker measured of one exporter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The published file's size in bytes.
    pub bytes: Option<u64>,
    /// The exit code, 0 to 255.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The largest memory (PSS of the tree, bytes) that was seen.
    pub peak_memory: Option<u64>,
    /// Processor time of the tree in milliseconds.
    pub cpu_millis: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_as_itself() {
        for word in Failure::ALL {
            assert_eq!(word.text().parse::<Failure>().unwrap(), *word);
        }
        for word in Waiting::ALL {
            assert_eq!(word.text().parse::<Waiting>().unwrap(), *word);
        }
        for state in State::ALL {
            assert_eq!(State::from_number(state.number()), Some(*state));
        }
    }

    #[test]
    fn only_time_makes_a_timeout() {
        let timeouts: Vec<_> = Failure::ALL.iter().filter(|reason| reason.state() == State::FailedTimeout).collect();
        assert_eq!(timeouts, [&Failure::TimedOut, &Failure::WouldNotDie]);
    }
}
