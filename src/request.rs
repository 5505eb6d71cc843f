//! Asking: `request` and `status`. Ready comes only from the file, everything else only from the database, and "there is no
//! row" is believed only after a second look at the file.

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
use crate::gates;
use crate::job::{Job, Phase, Waiting};
use crate::key::{self, Key};
use crate::rules::{self, Scene};
use crate::store::{Ask, QueueBounds, Requested, Store};

/// After how long without a tick callers are told that nobody dispatches.
const UNDISPATCHED: Duration = Duration::from_secs(120);

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
    /// How long a failure still holds off a new request, or a refusal should.
    pub retry_after: Option<Duration>,
    /// What the operator wants callers to read.
    pub message: Option<String>,
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

/// How a file is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// A new file although one is ready.
    pub refresh: bool,
    /// A young failure is not an answer.
    pub retry: bool,
}

/// The file name of a key.
pub fn filename_of(home: &Home, key: &Key) -> String {
    key.filename(&home.config.extension(&key.format))
}

/// Asks for a file.
///
/// # Errors
/// The database cannot be used (75, 77, 78); the answer to a ready file needs none.
pub fn request(home: &Home, key: &Key, wishes: Wishes) -> Result<Answer> {
    // Read once and before the first look at the file: a file published after that look fulfils this request.
    let now = clock::now();
    let filename = filename_of(home, key);
    let mut answer = blank(home, key, filename.clone(), now);
    if let Some(deny) = config_denies(home, key) {
        answer.refused = Some(Refused::Denied(deny));
        return Ok(answer);
    }
    if !wishes.refresh && home.ready(&filename, now)?.is_some() {
        return status(home, key);
    }
    let mut store = home.open_to_ask()?;
    if wishes.retry {
        retry_bases(home, &mut store, key, now)?;
    }
    let requested = store.request(&ask(home, key, filename, wishes), now)?;
    fault::point("request.after_commit")?;
    match requested {
        Requested::Queued(_) | Requested::Joined(_) => poke(home)?,
        Requested::Failing(_) => {}
        Requested::QueueFull | Requested::ClientLimit => {
            let is_full = requested == Requested::QueueFull;
            answer.refused = Some(if is_full { Refused::QueueFull } else { Refused::ClientLimit });
            answer.retry_after = Some(REFUSED_RETRY);
            return Ok(answer);
        }
    }
    look(home, key, Some(&store))
}

/// Whoever wants a failed export tried again wants the formats it is made from tried again too.
fn retry_bases(home: &Home, store: &mut dyn Store, key: &Key, now: DateTime<Utc>) -> Result<()> {
    let Some(base) = key.base(&home.config) else {
        return Ok(());
    };
    retry_bases(home, store, &base, now)?;
    let filename = filename_of(home, &base);
    if store.find(&filename)?.is_some_and(|job| matches!(job.phase, Phase::Failed { .. })) {
        store.request(&ask(home, &base, filename, Wishes { retry: true, refresh: false }), now)?;
    }
    Ok(())
}

fn config_denies(home: &Home, key: &Key) -> Option<String> {
    key::denied(&home.config, &key.title).map(|deny| deny.message.clone())
}

fn ask(home: &Home, key: &Key, filename: String, wishes: Wishes) -> Ask {
    let config = &home.config;
    let queue = config.queue_of_format(&key.format).to_owned();
    let limits = config.queue.get(&queue);
    Ask {
        base_filename: key.base(config).map(|base| filename_of(home, &base)),
        bounds: limits.map_or_else(QueueBounds::default, |queue| QueueBounds {
            queued: queue.max_queued,
            per_client: queue.max_queued_per_client,
        }),
        key: key.clone(),
        filename,
        queue,
        client: None,
        meta: None,
        pages: None,
        priority: rules::DEFAULT_PRIORITY,
        rank: None,
        not_before: None,
        wait_until: None,
        refresh: wishes.refresh,
        retry: wishes.retry,
        hold: config.failures.hold.0,
    }
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

/// Says what is true of an export.
///
/// # Errors
/// There is no ready file and the database cannot be used.
pub fn status(home: &Home, key: &Key) -> Result<Answer> {
    look(home, key, None)
}

fn look(home: &Home, key: &Key, opened: Option<&dyn Store>) -> Result<Answer> {
    let now = clock::now();
    let filename = filename_of(home, key);
    let mut answer = blank(home, key, filename.clone(), now);
    answer.file = home.ready(&filename, now)?;
    let is_ready = answer.file.is_some();
    let found = match opened {
        Some(store) => describe(home, store, &mut answer),
        None => match home.open_to_read() {
            Ok(Some(store)) => describe(home, &store, &mut answer),
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
    if !is_ready {
        // Between the two looks the job may have been fulfilled and its row deleted.
        answer.file = home.ready(&filename, clock::now())?.filter(|_| answer.job.is_none());
    }
    Ok(answer)
}

/// Adds what the database knows.
fn describe(home: &Home, store: &dyn Store, answer: &mut Answer) -> Result<()> {
    let Some(job) = store.find(&answer.filename)? else {
        return Ok(());
    };
    answer.queue.clone_from(&job.queue);
    match &job.phase {
        Phase::Queued { .. } => {
            let pause = store.pause_of(&job.queue)?;
            answer.ahead = Some(store.ahead(&job)?);
            answer.waiting = rules::waiting(&job, scene(home, store, &job, pause.is_some())?, answer.now);
            answer.message = pause.and_then(|pause| pause.message);
        }
        Phase::Failed { at, .. } => {
            answer.retry_after = rules::hold_left(*at, home.config.failures.hold.0, answer.now);
        }
        Phase::Started { .. } => {}
    }
    answer.job = Some(job);
    Ok(())
}

/// What can be seen about a queued job and its queue.
fn scene(home: &Home, store: &dyn Store, job: &Job, paused: bool) -> Result<Scene> {
    let queue = home.config.queue.get(&job.queue);
    let base_live = match &job.base_filename {
        None => false,
        Some(base) => store.find(base)?.is_some_and(|base| !matches!(base.phase, Phase::Failed { .. })),
    };
    let exporter_missing = home.config.format.get(&job.key.format).is_none_or(|format| {
        // Secrets are closed to front ends: only the owner can tell whether they are as they must be.
        if home.is_owner() { exporter::obstacle(format).is_some() } else { !exporter::missing(format).is_empty() }
    });
    Ok(Scene {
        paused,
        slots: queue.map_or(0, |queue| queue.slots),
        started: store.count_started(&job.queue)?,
        gate: queue.and_then(|queue| gates::closed(queue, &home.layout.cache)),
        base_live,
        undispatched: is_undispatched(home, clock::now())?,
        exporter_missing,
    })
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
        retry_after: None,
        message: None,
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
        answer = status(home, &answer.key)?;
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
