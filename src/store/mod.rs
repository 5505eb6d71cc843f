//! The queue as a set of domain verbs. One engine is SQLite; another joins by passing the same conformance test.
//!
//! **Claims and races.** A job is claimed by the process that will do the work, in one conditional statement. The claim
//! gives the run a token, and every later write of the run names it: a run that lost its token changes nothing, and is
//! told so by the answer ([`Settled::Lost`], `false`, `None`), not by an error. No transaction is open while an exporter
//! runs. Every transaction that writes begins as a writer, so that it waits its turn instead of failing half-way.
//!
//! `now` is an argument of every verb that needs it; no engine reads a clock.

/// The text of a statement of the SQLite engine.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/sqlite/", $name, ".sql"))
    };
}

mod deliveries;
pub mod migrate;
pub mod moving;
mod patience;
#[cfg(feature = "postgres")]
pub mod postgres;
mod request;
mod room;
mod rows;
mod runs;
pub mod sqlite;
mod trouble;
mod turn;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};

pub use self::patience::Patience;
use self::room::Room;
use crate::job::{Ended, Failure, Job, Outcome, Run, State, Waiting};
use crate::key::Key;

/// The name under which all who do not give one are interested in a job.
const ANONYMOUS: &str = "";

/// What a caller asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The export that is wanted.
    pub key: Key,
    /// Its file name.
    pub filename: String,
    /// The file name of its base.
    pub base_filename: Option<String>,
    /// The lane it shall wait in.
    pub queue: String,
    /// Who asks.
    pub client: Option<String>,
    /// What the caller wants to have back, JSON.
    pub meta: Option<String>,
    /// How large the book is, in pages.
    pub pages: Option<u32>,
    /// 0 to 1000, lower first.
    pub priority: i64,
    /// The rank to take instead of a new one: a base goes at the place of the job that needs it.
    pub rank: Option<i64>,
    /// Not to be started before this.
    pub not_before: Option<DateTime<Utc>>,
    /// Nobody waits for it after this.
    pub wait_until: Option<DateTime<Utc>>,
    /// A file published before now does not count.
    pub refresh: bool,
    /// A young failure is not an answer. The failed formats that it is made from are tried again with it, and so is what
    /// failed for its sake.
    pub retry: bool,
    /// How long a failure is an answer.
    pub hold: Duration,
    /// The bounds of the queue.
    pub bounds: QueueBounds,
}

/// How many jobs may wait; 0 is no bound.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueBounds {
    /// In the queue.
    pub queued: u64,
    /// Of one client in the queue.
    pub per_client: u64,
}

/// What a request came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Requested {
    /// There is a new job, or a failed one starts afresh.
    Queued(Job),
    /// A live job was joined.
    Joined(Job),
    /// It failed so recently that this is the answer; or its processes are not gone and it is marked as wanted.
    Failing(Job),
    /// The queue holds as many jobs as it may.
    QueueFull,
    /// The client has as many jobs as it may.
    ClientLimit,
}

/// A bound on waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Of the queue.
    Queue,
    /// Of one client in the queue.
    Client,
}

/// What many requests at once came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// All are stored.
    Stored {
        /// New jobs, and failed ones that start afresh.
        queued: u64,
        /// Live jobs that were joined.
        joined: u64,
        /// Failures that are the answer.
        failing: u64,
    },
    /// None is: this one was refused.
    Refused {
        /// Which, from 0.
        at: usize,
        /// By which bound.
        bound: Bound,
    },
}

/// A worker's wish for a job.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lane of its slot.
    pub queue: String,
    /// The formats that can be made here, with their time limits.
    pub formats: Vec<(String, Duration)>,
    /// The new run's token; written to the slot before the claim.
    pub token: String,
    /// The node.
    pub node: String,
    /// The slot, as `queue.number`.
    pub slot: String,
    /// The worker, as `pid.start`.
    pub worker: String,
    /// How many jobs of the queue may run on all nodes together; 0 is no bound.
    pub max_running: u32,
    /// How long the run is the worker's own where machines share the queue, from the claim on.
    pub lease: Duration,
}

/// Whether a run still has its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It has.
    Mine,
    /// It has, and is asked to end.
    Cancelled,
    /// The row does not carry this token any more, or its lease has ended.
    Lost,
}

/// A machine that works on a shared queue, since its boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its identity.
    pub id: String,
    /// Its host's name, for people.
    pub name: String,
    /// Of this program.
    pub version: String,
    /// In all its queues.
    pub slots: u32,
    /// In each of its queues; `None` where an older program does not say.
    pub lanes: Option<BTreeMap<String, u32>>,
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The node.
    pub node: Node,
    /// When it was seen first.
    pub first: DateTime<Utc>,
    /// When it was seen last.
    pub last: DateTime<Utc>,
    /// For how long it has not been seen.
    pub silent: Duration,
    /// How many jobs it has started.
    pub started: u64,
}

/// How a published run was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The job is fulfilled and gone.
    Forgotten,
    /// A newer file was asked for meanwhile: the job is queued again.
    QueuedAgain,
    /// The row does not carry this token any more.
    Lost,
}

/// Why a run's job goes back to its place, and what is counted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The worker died.
    Interrupted,
    /// The worker was told to stop.
    Stopped,
    /// It failed in passing and is tried again then.
    Retry(DateTime<Utc>),
    /// It waits for its base; not counted as an attempt.
    Base,
    /// This machine could not run it (no process, no descriptor); tried again then, not counted as an attempt.
    Unable(DateTime<Utc>),
    /// It was cancelled, or a newer file asked for, and is wanted again since: at its old place, with its old counts.
    Wanted,
}

/// What a cancel came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It was queued and is gone.
    Removed,
    /// It is started and its worker is asked to end it.
    Marked,
    /// That many others still want it.
    StillWanted(u64),
    /// There is no live job.
    NotLive,
}

/// What a retry of all failed jobs came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetriedAll {
    /// Jobs that start afresh.
    pub queued: u64,
    /// Jobs that stay failed, for processes of theirs are left.
    pub skipped: u64,
}

/// Which jobs to list; `None` is any.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only in this state.
    pub state: Option<State>,
    /// Only in this queue.
    pub queue: Option<String>,
    /// Only of this format.
    pub format: Option<String>,
    /// At most that many.
    pub limit: Option<u32>,
}

/// Which runs to tell of; `None` is any.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// Only of this file.
    pub filename: Option<String>,
    /// Only of this format.
    pub format: Option<String>,
    /// Only in this language.
    pub lang: Option<String>,
    /// Only where this client asked first.
    pub client: Option<String>,
    /// Only those that ended so.
    pub outcome: Option<Outcome>,
    /// Only those that ended then or later.
    pub since: Option<DateTime<Utc>>,
    /// At most that many.
    pub limit: Option<u32>,
}

/// What a queue holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// The queue.
    pub queue: String,
    /// Jobs waiting.
    pub queued: u64,
    /// Of these, jobs that wait for nothing but a slot (or their base).
    pub due: u64,
    /// Jobs with a worker.
    pub started: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// When the oldest waiting job was asked for.
    pub oldest: Option<DateTime<Utc>>,
}

/// A pause that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Since when.
    pub since: DateTime<Utc>,
    /// What callers are told.
    pub message: Option<String>,
}

/// A failure that is to be written.
#[derive(Debug, Clone)]
pub struct FailureNote<'a> {
    /// Why.
    pub reason: Failure,
    /// Exit code or signal, then the last lines of output.
    pub detail: &'a str,
    /// Processes of the run are left: the row keeps its token.
    pub keeps_token: bool,
}

/// Who is told of jobs that end, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listeners {
    /// When a file is published.
    pub ready: Vec<String>,
    /// When a job fails.
    pub failed: Vec<String>,
}

/// That a job ended, to be told to one listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its number, never used twice: who is told twice knows it by that.
    pub id: i64,
    /// Who is to be told.
    pub listener: String,
    /// The job that ended.
    pub job_id: i64,
    /// What was wanted.
    pub key: Key,
    /// The file's name.
    pub filename: String,
    /// Who asked first.
    pub client: Option<String>,
    /// What the caller wants to have back, JSON.
    pub meta: Option<String>,
    /// Runs that it took.
    pub attempts: u32,
    /// How it ended: `ready`, `failed_timeout` or `failed_unknown`.
    pub outcome: Outcome,
    /// Why, if it failed.
    pub reason: Option<Failure>,
    /// Exit code or signal and the last lines of output.
    pub detail: Option<String>,
    /// When it ended.
    pub happened_at: DateTime<Utc>,
    /// From when on is counted how long it is tried.
    pub since: DateTime<Utc>,
    /// When it is told, or tried again; `None` when it was given up.
    pub due_at: Option<DateTime<Utc>>,
    /// How often it was tried in vain.
    pub tries: u32,
    /// What went wrong the last time.
    pub error: Option<String>,
}

/// The queue.
pub trait Store {
    /// The random id that binds this database to its cache and state directory.
    fn queue_id(&self) -> Result<String>;

    /// Whether the queue that machines share has a cache: none is made beside it.
    fn has_cache(&self) -> Result<bool> {
        Ok(false)
    }

    /// Notes that it has one.
    fn note_cache(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether somebody else is writing at this moment, and would hold a write of ours up.
    fn is_being_written(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Asks for a file: inserts, joins, revives or refuses, decided under the write lock.
    fn request(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested>;

    /// Asks for many files, as [`Store::request`] for each in turn, all of them or none.
    fn request_all(&mut self, asks: &[Ask], now: DateTime<Utc>) -> Result<Batch>;

    /// What [`Store::request`] would come to; nothing is stored.
    fn rehearse(&mut self, ask: &Ask, now: DateTime<Utc>) -> Result<Requested>;

    /// The job for a file.
    fn find(&self, filename: &str) -> Result<Option<Job>>;

    /// The job with that number.
    fn find_by_id(&self, id: i64) -> Result<Option<Job>>;

    /// The row that a run may write.
    fn find_by_token(&self, token: &str) -> Result<Option<Job>>;

    /// Jobs, in the order in which they would start.
    fn list(&self, filter: &Filter) -> Result<Vec<Job>>;

    /// Started jobs, in no order.
    fn started(&self) -> Result<Vec<Job>>;

    /// Started jobs that a node answers for, in no order: all, where it is the only one.
    fn started_on(&self, _node: &str) -> Result<Vec<Job>> {
        self.started()
    }

    /// What each queue holds.
    fn tally(&self, now: DateTime<Utc>) -> Result<Vec<Tally>>;

    /// How many jobs of a queue take a slot: the started, and the failed whose processes do not die.
    fn count_started(&self, queue: &str) -> Result<u32>;

    /// How many queued jobs go before this one in its queue, counted to 1000.
    fn ahead(&self, job: &Job) -> Result<u32>;

    /// The formats of the jobs due that go before this one in its queue, in their order, the first 1000.
    fn formats_ahead(&self, job: &Job) -> Result<Vec<String>>;

    /// The pause of a queue, if it is paused.
    fn pause_of(&self, queue: &str) -> Result<Option<Pause>>;

    /// Pauses a queue: nothing of it is due or claimed any more. A pause that is in force keeps its date.
    fn pause(&mut self, queue: &str, message: Option<&str>, now: DateTime<Utc>) -> Result<()>;

    /// Ends the pause of a queue; false when there was none.
    fn resume(&mut self, queue: &str) -> Result<bool>;

    /// The queues that are paused.
    fn paused(&self) -> Result<Vec<String>>;

    /// How many jobs of these formats a queue has due, counted to `limit`.
    fn due(&self, queue: &str, formats: &[(String, Duration)], now: DateTime<Utc>, limit: u32) -> Result<u32>;

    /// The queues in which jobs wait.
    fn queues_waiting(&self) -> Result<Vec<String>> {
        // What of them is due is not asked.
        let tallied = self.tally(DateTime::UNIX_EPOCH)?;
        Ok(tallied.into_iter().filter(|tally| tally.queued > 0).map(|tally| tally.queue).collect())
    }

    /// The formats that wait in a queue, whether or not they can be made here.
    fn due_formats(&self, queue: &str) -> Result<Vec<String>>;

    /// Claims the next due job that somebody still waits for, counting the attempt; `None` when nothing is due.
    fn claim(&mut self, claim: &Claim, now: DateTime<Utc>) -> Result<Option<Job>>;

    /// Looks whether a run still has its job, and has it for `lease` longer where machines share the queue.
    fn renew(&mut self, token: &str, _lease: Duration) -> Result<Hold> {
        // Where the slot lock fences, a look is enough.
        Ok(match self.find_by_token(token)?.map(|job| (job.state(), job.cancel_at)) {
            Some((State::Started, None)) => Hold::Mine,
            Some((State::Started, Some(_))) => Hold::Cancelled,
            _ => Hold::Lost,
        })
    }

    /// Jobs of other nodes whose lease has ended, by number, at most `limit` from the one after `after` on.
    fn lost(&self, _node: &str, _after: i64, _limit: u32) -> Result<Vec<Job>> {
        Ok(Vec::new())
    }

    /// The clock that machines share; `None` where this machine's is the only one.
    fn time(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(None)
    }

    /// Notes that a node is there, where machines share the queue.
    fn heartbeat(&mut self, _node: &Node) -> Result<()> {
        Ok(())
    }

    /// The nodes that share the queue, the latest seen first; those not seen for a month are forgotten.
    fn nodes(&self) -> Result<Vec<Seen>> {
        Ok(Vec::new())
    }

    /// Notes what the exporter says of its progress.
    fn progress(&mut self, token: &str, progress: &str) -> Result<()>;

    /// Settles a published run, and records it.
    fn finish(&mut self, run: &Run, node: &str) -> Result<Settled>;

    /// Settles a published run and claims the next job, as [`Store::finish`] and [`Store::claim`]; in one transaction where
    /// the engine gains by it.
    fn finish_and_claim(&mut self, run: &Run, claim: &Claim, now: DateTime<Utc>) -> Result<(Settled, Option<Job>)> {
        let settled = self.finish(run, &claim.node)?;
        Ok((settled, self.claim(claim, now)?))
    }

    /// Settles a failed run, and records it; false when the row is not this run's any more.
    fn fail(&mut self, run: &Run, node: &str, note: &FailureNote<'_>) -> Result<bool>;

    /// Puts a run's job back, and records the run where it is worth it; false when the row is not this run's any more.
    fn requeue(&mut self, token: &str, again: Again, record: Option<(&Run, &str)>) -> Result<bool>;

    /// Frees the row of a failed run whose processes are gone at last.
    fn let_go(&mut self, token: &str) -> Result<bool>;

    /// Deletes a job without a worker that a file published then fulfils; false when it is not so any more.
    fn forget(&mut self, id: i64, published_at: DateTime<Utc>) -> Result<bool>;

    /// Jobs without a worker whose file was published since then and since they were asked for: id and file name.
    fn fulfilled(&self, since: DateTime<Utc>) -> Result<Vec<(i64, String)>>;

    /// Takes back a wish: for `client`, or for everybody with `force`.
    fn cancel(&mut self, filename: &str, client: Option<&str>, force: bool, now: DateTime<Utc>) -> Result<Cancelled>;

    /// Deletes a failed row; false when there is none that may be deleted.
    fn dismiss(&mut self, filename: &str) -> Result<bool>;

    /// Queues every failed job afresh at its old place, unless processes of it are left.
    fn retry_failed(&mut self, now: DateTime<Utc>) -> Result<RetriedAll>;

    /// Deletes failures of a state that are older than `before`, unless processes of them are left; how many, or with
    /// `dry_run` how many it would be.
    fn purge(&mut self, state: State, before: DateTime<Utc>, dry_run: bool) -> Result<u64>;

    /// Deletes failures older than `before` and those beyond `max`.
    fn expire_failed(&mut self, before: DateTime<Utc>, max: u64, now: DateTime<Utc>) -> Result<u64>;

    /// Fails queued jobs that nobody waits for any more.
    fn expire_waits(&mut self, now: DateTime<Utc>) -> Result<u64>;

    /// Base files that live jobs may still use, and since when those must have been published.
    fn needed_bases(&self) -> Result<Vec<(String, DateTime<Utc>)>>;

    /// Files published and handed out before then that nobody has seen gone, oldest first: `page.1` of them after the first
    /// `page.0`.
    fn due_files(&self, before: DateTime<Utc>, now: DateTime<Utc>, page: (u32, u32)) -> Result<Vec<String>>;

    /// How large all files together are that nobody has seen gone.
    fn present_bytes(&self) -> Result<u64>;

    /// Notes that a file was handed out at that time, unless it was published or handed out since `known`. Waits for no
    /// other writer.
    fn accessed(&mut self, filename: &str, at: DateTime<Utc>, known: DateTime<Utc>) -> Result<()>;

    /// Files that were handed out since then, and when that was last noted.
    fn accesses(&self, since: DateTime<Utc>) -> Result<Vec<(String, DateTime<Utc>)>>;

    /// The run of one of these formats whose file is there and whose fingerprint was not compared since `before`, the one
    /// that waited the longest.
    fn next_to_check(&self, formats: &[String], before: DateTime<Utc>) -> Result<Option<Run>>;

    /// Notes that a run's fingerprint was compared.
    fn checked(&mut self, token: &str, now: DateTime<Utc>) -> Result<()>;

    /// Notes that these files are gone.
    fn swept(&mut self, filenames: &[String]) -> Result<()>;

    /// Notes that a file is younger than its run says.
    fn still_there(&mut self, filename: &str, published_at: DateTime<Utc>) -> Result<()>;

    /// Runs, the latest first.
    fn runs(&self, past: &Past) -> Result<Vec<Run>>;

    /// Runs, the latest first; of one file or of all.
    fn history(&self, filename: Option<&str>, limit: u32) -> Result<Vec<Run>> {
        self.runs(&Past { filename: filename.map(str::to_owned), limit: Some(limit), ..Past::default() })
    }

    /// What the caller whose run made the file wants to have back, JSON.
    fn meta_of_file(&self, filename: &str) -> Result<Option<String>>;

    /// Shows every run that ended since then, in no order, without keeping them all in memory.
    fn ended(&self, since: DateTime<Utc>, visit: &mut dyn FnMut(Ended)) -> Result<()>;

    /// How long the last successful runs of a format took, the latest first.
    fn recent_durations(&self, format: &str, limit: u32) -> Result<Vec<Duration>>;

    /// Deletes runs that ended before then, and those beyond `max`; never one whose file is there.
    fn prune_history(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64>;

    /// Names who is told of jobs that end through this store from now on; each of them gets a delivery, written in the
    /// transaction that ends the job.
    fn tell(&mut self, listeners: Listeners);

    /// The delivery to one of these listeners that has been due the longest.
    fn next_delivery(&self, listeners: &[String], now: DateTime<Utc>) -> Result<Option<Delivery>>;

    /// Takes what [`Store::next_delivery`] shows, for at most `hold` where machines share the queue.
    fn take_delivery(&mut self, listeners: &[String], now: DateTime<Utc>, _hold: Duration) -> Result<Option<Delivery>> {
        // Where there is one machine, the lock of its errands fences.
        self.next_delivery(listeners, now)
    }

    /// Leaves a delivery that was taken to whoever comes next.
    fn leave_delivery(&mut self, _id: i64, _now: DateTime<Utc>) -> Result<()> {
        Ok(())
    }

    /// Deliveries that were not made yet, or were given up, the oldest first.
    fn deliveries(&self) -> Result<Vec<Delivery>>;

    /// Deletes a delivery that was made.
    fn delivered(&mut self, id: i64) -> Result<()>;

    /// Notes why a delivery was not made, and when it is tried again (`None`: no more).
    fn undelivered(&mut self, id: i64, error: &str, again: Option<DateTime<Utc>>) -> Result<()>;

    /// Makes a delivery due now, as if it had never been tried; false when there is none with that number.
    fn retry_delivery(&mut self, id: i64, now: DateTime<Utc>) -> Result<bool>;

    /// Deletes deliveries of jobs that ended before then, and those given up beyond `max`; how many.
    fn forget_deliveries(&mut self, before: DateTime<Utc>, max: u64) -> Result<u64>;

    /// Every token that a row names: work directories and logs of others have no owner.
    fn tokens(&self) -> Result<Vec<String>>;
}

/// What of a job is counted when it goes back to its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) attempts: i64,
    pub(crate) retries: i64,
    pub(crate) interruptions: i64,
    pub(crate) stops: i64,
    pub(crate) base_waits: i64,
    pub(crate) later: Option<(DateTime<Utc>, Waiting)>,
}

impl Again {
    /// What is counted for it.
    pub(crate) fn counts(self) -> Counts {
        let none = Counts::default();
        match self {
            Self::Interrupted => Counts { interruptions: 1, ..none },
            Self::Stopped => Counts { stops: 1, ..none },
            Self::Retry(at) => Counts { retries: 1, later: Some((at, Waiting::BackingOff)), ..none },
            Self::Base => Counts { attempts: -1, base_waits: 1, ..none },
            Self::Unable(at) => Counts { attempts: -1, later: Some((at, Waiting::BackingOff)), ..none },
            Self::Wanted => none,
        }
    }
}
