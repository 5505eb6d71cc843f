//! Asking: `request` and `status`. Ready comes only from the file, everything else only from the database, and "there is no
//! row" is believed only after a second look at the file.

mod batch;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};

use crate::bind::Home;
use crate::cache::Facts;
use crate::clock;
use crate::config;
use crate::dispatch;
use crate::exit::Exit;
use crate::exporter;
use crate::fault;
use crate::forecast::{self, Outlook, Running};
use crate::gates;
use crate::job::{Job, Phase, Waiting};
use crate::key::{self, Key};
use crate::rules::{self, Scene};
use crate::store::{Ask, Patience, Requested, Seen, Store};

pub use batch::{Counted, request_all};
pub use wishes::{Wishes, unknown_queue};

/// After how long without a tick callers are told that nobody dispatches.
const UNDISPATCHED: Duration = Duration::from_secs(120);

/// So many past runs of a format say how long the next ones take.
const RECENT_RUNS: u32 = 50;

/// How long a caller whose request was refused by a bound should wait.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// A refusal that is an answer about the file, not an error of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The queue holds as many jobs as it may.
    QueueFull,
    /// The client has as many jobs as it may.
    ClientLimit,
    /// A deny rule matches; its message.
    Denied(String),
}

/// What is true of one export, now.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was asked about.
    pub key: Key,
    /// Its file name.
    pub filename: String,
    /// The lane that it waits in, or would.
    pub queue: String,
    /// The ready file, and until when it is promised.
    pub file: Option<(Facts, Option<DateTime<Utc>>)>,
    /// The job.
    pub job: Option<Job>,
    /// How many queued jobs go before it, counted to 1000.
    pub ahead: Option<u32>,
    /// Why it waits.
    pub waiting: Option<Waiting>,
    /// Why it was refused.
    pub refused: Option<Refused>,
    /// In how many seconds, at least and at most, it is expected to start or, once it has started, to be ready.
    pub eta: Option<(u64, u64)>,
    /// In how many seconds to look again.
    pub poll_after: Option<u64>,
    /// How long a failure still holds off a new request, or a refusal should.
    pub retry_after: Option<Duration>,
    /// What the operator wants callers to read.
    pub message: Option<String>,
    /// What the first caller wants to have back, JSON.
    pub meta: Option<String>,
    /// When this was true.
    pub now: DateTime<Utc>,
}

impl Answer {
    /// How the program ends with this answer.
    pub fn exit(&self) -> Exit {
        match (&self.file, &self.refused, self.job.as_ref().map(|job| &job.phase)) {
            (Some(_), _, _) => Exit::Done,
            (None, Some(Refused::QueueFull | Refused::ClientLimit), _) => Exit::TryLater,
            (None, Some(Refused::Denied(_)), _) => Exit::NotPermitted,
            (None, None, Some(Phase::Queued { .. })) => Exit::Queued,
            (None, None, Some(Phase::Started { .. })) => Exit::Started,
            (None, None, Some(Phase::Failed { .. })) => Exit::Failed,
            (None, None, None) => Exit::Absent,
        }
    }
}

/// The file name of a key.
pub fn filename_of(home: &Home, key: &Key) -> String {
    key.filename(&home.config.extension(&key.format))
}

/// Asks for a file.
///
/// # Errors
/// A wish cannot be granted (2); the database cannot be used (75, 77, 78), but the answer to a ready file needs none.
pub fn request(home: &Home, key: &Key, wishes: &Wishes) -> Result<Answer> {
    // Read once and before the first look at the file: a file published after that look fulfils this request.
    let now = clock::now();
    wishes.check(&home.config, now)?;
    if let Some(answer) = answer_at_once(home, key, wishes, now)? {
        return Ok(answer);
    }
    let mut store = home.open_to_ask()?;
    let ask = ask(home, key.clone(), filename_of(home, key), wishes, now);
    let requested = store.request(&ask, now)?;
    fault::point("request.after_commit")?;
    match requested {
        Requested::Queued(_) | Requested::Joined(_) => poke(home)?,
        Requested::Failing(_) => {}
        Requested::QueueFull => return Ok(refused(home, ask, Refused::QueueFull, now)),
        Requested::ClientLimit => return Ok(refused(home, ask, Refused::ClientLimit, now)),
    }
    look(home, key, &ask.filename, Some(&*store))
}

/// The answer that needs no change of the database: denied, or a ready file.
fn answer_at_once(home: &Home, key: &Key, wishes: &Wishes, now: DateTime<Utc>) -> Result<Option<Answer>> {
    let filename = filename_of(home, key);
    if let Some(deny) = config_denies(home, key) {
        let refused = Some(Refused::Denied(deny));
        return Ok(Some(Answer { refused, ..blank(home, key, filename, now) }));
    }
    if !wishes.refresh && home.ready(&filename, now)?.is_some() {
        return status(home, key).map(Some);
    }
    Ok(None)
}

fn refused(home: &Home, ask: Ask, why: Refused, now: DateTime<Utc>) -> Answer {
    let (refused, retry_after) = (Some(why), Some(REFUSED_RETRY));
    Answer { queue: ask.queue, refused, retry_after, ..blank(home, &ask.key, ask.filename, now) }
}

/// What a request does, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Would {
    /// Nothing is stored: that is the answer already.
    Answer,
    /// A new job, or a failed one afresh.
    Queue,
    /// A live job is joined.
    Join,
}

/// What a request would come to; nothing is stored.
///
/// # Errors
/// As [`request`].
pub fn rehearse(home: &Home, key: &Key, wishes: &Wishes) -> Result<(Would, Answer)> {
    let now = clock::now();
    wishes.check(&home.config, now)?;
    if let Some(answer) = answer_at_once(home, key, wishes, now)? {
        return Ok((Would::Answer, answer));
    }
    let mut store = home.open_to_ask()?;
    let ask = ask(home, key.clone(), filename_of(home, key), wishes, now);
    let (would, job) = match store.rehearse(&ask, now)? {
        Requested::Queued(job) => (Would::Queue, job),
        Requested::Joined(job) => (Would::Join, job),
        Requested::Failing(job) => (Would::Answer, job),
        Requested::QueueFull => return Ok((Would::Answer, refused(home, ask, Refused::QueueFull, now))),
        Requested::ClientLimit => return Ok((Would::Answer, refused(home, ask, Refused::ClientLimit, now))),
    };
    let mut answer = blank(home, key, ask.filename, now);
    describe(home, &*store, job, &mut answer)?;
    Ok((would, answer))
}

fn config_denies(home: &Home, key: &Key) -> Option<String> {
    key::denied(&home.config, &key.title).map(|deny| deny.message.clone())
}

fn ask(home: &Home, key: Key, filename: String, wishes: &Wishes, now: DateTime<Utc>) -> Ask {
    let base = key.base(&home.config).map(|base| filename_of(home, &base));
    wishes.ask(&home.config, key, (filename, base), now)
}

/// Wakes a dispatcher that waits. The file belongs to the owner; a front end only writes to it.
///
/// # Errors
/// The file cannot be written although it is there.
pub fn poke(home: &Home) -> Result<()> {
    let path = home.layout.poke();
    let poked = OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(b"."));
    match poked {
        Ok(()) => Ok(()),
        // The job is stored; without a poke it starts with the next look.
        Err(error) => {
            tracing::debug!("cannot poke {}: {error}", path.display());
            Ok(())
        }
    }
}

/// What the file of an export says by itself: path, size, dates. Only [`status`] knows what is more to say beside a ready file:
/// a newer one that is under way, and what the caller wants to have back. `None` when there is no ready file.
///
/// # Errors
/// The cache cannot be looked at.
pub fn ready(home: &Home, key: &Key, filename: &str) -> Result<Option<Answer>> {
    let now = clock::now();
    let Some(file) = home.ready(filename, now)? else {
        return Ok(None);
    };
    note_access(home, &file.0, now);
    Ok(Some(Answer { file: Some(file), ..blank(home, key, filename.to_owned(), now) }))
}

/// Says what is true of an export.
///
/// # Errors
/// There is no ready file and the database cannot be used.
pub fn status(home: &Home, key: &Key) -> Result<Answer> {
    status_of(home, key, &filename_of(home, key))
}

/// Says what is true of an export whose file name is known: that of a format that is not configured any more follows from
/// no configuration.
///
/// # Errors
/// As [`status`].
pub fn status_of(home: &Home, key: &Key, filename: &str) -> Result<Answer> {
    look(home, key, filename, None)
}

fn look(home: &Home, key: &Key, filename: &str, opened: Option<&dyn Store>) -> Result<Answer> {
    let now = clock::now();
    let mut answer = blank(home, key, filename.to_owned(), now);
    answer.file = home.ready(filename, now)?;
    let is_ready = answer.file.is_some();
    let found = match opened {
        Some(store) => describe_job(home, store, &mut answer),
        None => match home.open_to_look(if is_ready { Patience::HASTY } else { Patience::ASKER }) {
            Ok(Some(store)) => describe_job(home, &*store, &mut answer),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        },
    };
    match found {
        // A ready file is an answer whatever the database says.
        Err(error) if is_ready => {
            tracing::debug!("a ready file is served without the database: {error:#}");
        }
        other => other?,
    }
    if let Some((file, _)) = &answer.file {
        note_access(home, file, now);
    } else {
        // Between the two looks the job may have been fulfilled and its row deleted.
        answer.file = home.ready(filename, clock::now())?.filter(|_| answer.job.is_none());
    }
    Ok(answer)
}

/// Notes that a path is handed out, where that counts, for the next tick to tell the file; whoever may not, or would have to
/// wait, does not.
fn note_access(home: &Home, file: &Facts, now: DateTime<Utc>) {
    if !home.cache.policy.renews(file.dates, now) {
        return;
    }
    let filename = &file.filename;
    if let Err(error) =
        home.open_to_ask().and_then(|mut store| store.accessed(filename, now, home.cache.policy.renewed_before(now)))
    {
        tracing::debug!("the use of {filename} is not noted: {error:#}");
    }
}

/// Adds what the database knows: of the job, or of the run that made the file.
fn describe_job(home: &Home, store: &dyn Store, answer: &mut Answer) -> Result<()> {
    if let Some(job) = store.find(&answer.filename)? {
        return describe(home, store, job, answer);
    }
    if answer.file.is_some() {
        answer.meta = store.meta_of_file(&answer.filename)?;
    }
    Ok(())
}

fn describe(home: &Home, store: &dyn Store, job: Job, answer: &mut Answer) -> Result<()> {
    answer.queue.clone_from(&job.queue);
    match &job.phase {
        Phase::Queued { .. } => {
            let pause = store.pause_of(&job.queue)?;
            let ahead = store.ahead(&job)?;
            let scene = scene(home, store, &job, pause.is_some())?;
            answer.ahead = Some(ahead);
            answer.waiting = rules::waiting(&job, scene, answer.now);
            if forecast::can_be_foreseen(answer.waiting, ahead) {
                let outlook = outlook(store, &job, scene, answer.now)?;
                answer.eta = forecast::eta(&job, answer.waiting, &outlook, answer.now);
            }
            answer.message = pause.and_then(|pause| pause.message);
        }
        Phase::Started { .. } => {
            let history = history(store, [&job.key.format])?;
            answer.eta = forecast::eta(&job, None, &Outlook { history, ..Outlook::default() }, answer.now);
        }
        Phase::Failed { reason, at, .. } => {
            answer.retry_after = rules::hold_left(*reason, *at, home.config.failures.hold.0, answer.now);
        }
    }
    answer.meta.clone_from(&job.meta);
    answer.poll_after = rules::poll_after(&job, answer.ahead, answer.waiting, answer.now);
    answer.job = Some(job);
    Ok(())
}

/// What a queued job's start depends on.
///
/// # Errors
/// The database cannot be read.
pub fn outlook(store: &dyn Store, job: &Job, scene: Scene, now: DateTime<Utc>) -> Result<Outlook> {
    let running: Vec<Running> = store
        .started()?
        .iter()
        .filter(|other| other.queue == job.queue)
        .filter_map(|other| running(other, now))
        .collect();
    let ahead = store.formats_ahead(job)?;
    let formats = ahead.iter().chain(running.iter().map(|run| &run.format)).chain([&job.key.format]);
    let history = history(store, formats)?;
    // A failed run whose processes do not die keeps its slot for nobody knows how long.
    let slots = (scene.slots + running.len() as u32).saturating_sub(scene.started);
    Ok(Outlook { slots, running, ahead, history })
}

fn running(job: &Job, now: DateTime<Utc>) -> Option<Running> {
    let Phase::Started { since, deadline, .. } = &job.phase else {
        return None;
    };
    let span = |from: DateTime<Utc>, to: DateTime<Utc>| (to - from).to_std().unwrap_or_default();
    Some(Running { format: job.key.format.clone(), elapsed: span(*since, now), limit: span(*since, *deadline) })
}

/// How long the last successful runs of each of these formats took.
fn history<'a>(
    store: &dyn Store,
    formats: impl IntoIterator<Item = &'a String>,
) -> Result<BTreeMap<String, Vec<Duration>>> {
    let formats: BTreeSet<&String> = formats.into_iter().collect();
    formats.into_iter().map(|format| Ok((format.clone(), store.recent_durations(format, RECENT_RUNS)?))).collect()
}

/// What can be seen about a queued job and its queue.
fn scene(home: &Home, store: &dyn Store, job: &Job, paused: bool) -> Result<Scene> {
    let queue = home.config.queue.get(&job.queue);
    let base_live = match &job.base_filename {
        None => false,
        Some(base) => store.find(base)?.is_some_and(|base| !matches!(base.phase, Phase::Failed { .. })),
    };
    let limits = home.config.format_limits(&job.key.format);
    let exporter_missing = home.config.format.get(&job.key.format).is_none_or(|format| {
        // Secrets are closed to front ends, and their walls may be others: only the owner can tell how its own are.
        if home.is_owner() {
            exporter::obstacle(format, &limits).is_some()
        } else {
            !exporter::missing(format).is_empty()
        }
    });
    let fleet = Fleet::of(home, store)?;
    Ok(Scene {
        paused,
        slots: fleet.slots(home, &job.queue),
        started: store.count_started(&job.queue)?,
        gate: queue.and_then(|queue| gates::closed(queue, &home.layout.cache)),
        base_live,
        undispatched: fleet.0.is_empty() && is_undispatched(home, clock::now())?,
        exporter_missing,
    })
}

/// The machines that share the queue and have dispatched of late; none where there is only this one.
struct Fleet(Vec<Seen>);

impl Fleet {
    fn of(home: &Home, store: &dyn Store) -> Result<Self> {
        let mut nodes = if home.is_shared() { store.nodes()? } else { Vec::new() };
        nodes.retain(|seen| seen.silent < UNDISPATCHED);
        Ok(Self(nodes))
    }

    /// The slots of a queue on all of them, as far as the bound over all of them goes.
    fn slots(&self, home: &Home, queue: &str) -> u32 {
        let (own, bound) = home.config.queue.get(queue).map_or((0, 0), |queue| (queue.slots, queue.max_running));
        let of_node =
            |seen: &Seen| seen.node.lanes.as_ref().map_or(own, |lanes| lanes.get(queue).copied().unwrap_or(0));
        let slots = if self.0.is_empty() { own } else { self.0.iter().map(of_node).sum() };
        if bound > 0 { slots.min(bound) } else { slots }
    }
}

/// Whether nobody has dispatched for two minutes.
///
/// # Errors
/// The state directory cannot be looked at.
pub fn is_undispatched(home: &Home, now: DateTime<Utc>) -> Result<bool> {
    // A queue that was set up a moment ago has not been neglected yet.
    let last = match dispatch::last_tick(&home.layout.tick())? {
        None => dispatch::last_tick(&home.layout.queue_id())?,
        last => last,
    };
    Ok(last.is_none_or(|last| (now - last).to_std().is_ok_and(|age| age > UNDISPATCHED)))
}

fn blank(home: &Home, key: &Key, filename: String, now: DateTime<Utc>) -> Answer {
    Answer {
        key: key.clone(),
        filename,
        queue: home.config.queue_of_format(&key.format).to_owned(),
        file: None,
        job: None,
        ahead: None,
        waiting: None,
        refused: None,
        eta: None,
        poll_after: None,
        retry_after: None,
        message: None,
        meta: None,
        now,
    }
}

/// Asks again until the answer is final or the time is over; gives back whatever is true then.
///
/// # Errors
/// As [`status`].
pub fn await_final(home: &Home, first: Answer, patience: Duration) -> Result<Answer> {
    let until = clock::monotonic() + patience;
    let mut pause = Duration::from_millis(20);
    let mut answer = first;
    // A refresh is final when the new file is there; until then a live job stands beside the ready file.
    let is_live = |answer: &Answer| answer.job.as_ref().is_some_and(|job| !matches!(job.phase, Phase::Failed { .. }));
    while is_live(&answer) && clock::monotonic() < until {
        thread::sleep(pause.min(until.saturating_sub(clock::monotonic())));
        pause = (pause * 3 / 2).min(Duration::from_millis(500));
        answer = status_of(home, &answer.key, &answer.filename)?;
    }
    Ok(answer)
}

/// A configuration's key for a selection.
///
/// # Errors
/// The selection is not valid (2).
pub fn key_of(config: &config::Config, selection: &key::Selection) -> Result<Key> {
    key::resolve(config, selection).map_err(|error| crate::exit::Refusal::usage(error.to_string()))
}
