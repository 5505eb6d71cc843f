//! Base formats: ten formats asked for at once make one EPUB, and each works on a private copy of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};

use crate::bind::Home;
use crate::cache::{self, Facts, WorkDir};
use crate::clock;
use crate::fault;
use crate::job::{Job, Phase};
use crate::key::Key;
use crate::retention::Standing;
use crate::rules::{self, MAX_BASE_WAITS};
use crate::store::{Ask, QueueBounds, Requested, Store};

/// What a derived job finds when it looks for its base.
#[derive(Debug)]
pub(super) enum Base {
    /// It has none.
    None,
    /// A private copy.
    Copy(PathBuf),
    /// It is asked for now: the job goes back to its place.
    Wait,
    /// It failed: so does the job, with these words.
    Failed(String),
}

/// Takes a private copy of the job's base, or asks for the base.
///
/// # Errors
/// The cache or the database cannot be used.
pub(super) fn take(home: &Home, store: &mut dyn Store, job: &Job, work: &WorkDir) -> Result<Base> {
    let Some(key) = job.key.base(&home.config) else {
        return Ok(Base::None);
    };
    let extension = home.config.extension(&key.format);
    let filename = key.filename(&extension);
    if let Some(file) = open_usable(home, store, job, &filename)? {
        fault::point("base.before_copy")?;
        let copy = work.input(&extension);
        home.cache.copy_base(&file, &copy).context("copying the base")?;
        return Ok(Base::Copy(copy));
    }
    let now = clock::now();
    if let Some(failed) = failure_of(home, store, job, &filename, now)? {
        return Ok(Base::Failed(rules::base_failed_detail(&key.format, failed.0, &failed.1)));
    }
    if job.base_waits >= MAX_BASE_WAITS {
        return Ok(Base::Failed(format!("{}: was not there after {MAX_BASE_WAITS} tries", key.format)));
    }
    let requested = store.request(&ask_for(home, job, key, filename), now)?;
    fault::point("base.after_request")?;
    match requested {
        Requested::Failing(base) => match base.phase {
            Phase::Failed { reason, detail, .. } => {
                Ok(Base::Failed(rules::base_failed_detail(&base.key.format, reason, &detail)))
            }
            Phase::Queued { .. } | Phase::Started { .. } => Ok(Base::Wait),
        },
        Requested::Queued(_) | Requested::Joined(_) | Requested::QueueFull | Requested::ClientLimit => Ok(Base::Wait),
    }
}

/// The base, opened before its age is looked at: ready, or published since the job was submitted. For a refresh only a base
/// whose run began after what was asked for: one that was under way may hold what was there before.
fn open_usable(home: &Home, store: &dyn Store, job: &Job, filename: &str) -> Result<Option<File>> {
    let Some((file, facts)) = open(&home.layout.published(filename)).context("opening the base")? else {
        return Ok(None);
    };
    let is_ready = matches!(home.cache.policy.standing(facts.dates, clock::now()), Standing::Ready { .. });
    let is_new = facts.dates.modified >= job.wanted_since();
    let is_usable = match job.newer_than {
        None => is_ready || is_new,
        Some(newer) => is_new && began_since(store, &facts, newer)?,
    };
    Ok((is_usable && facts.bytes > 0).then_some(file))
}

/// A file of ours, opened, and what is known of that very file.
fn open(path: &Path) -> io::Result<Option<(File, Facts)>> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    Ok(cache::facts(path)?.filter(|facts| (meta.dev(), meta.ino()) == facts.inode).map(|facts| (file, facts)))
}

/// Whether the run that published a file began since then; a file that no record names is taken at its date.
fn began_since(store: &dyn Store, facts: &Facts, since: DateTime<Utc>) -> Result<bool> {
    let runs = store.history(Some(&facts.filename), 10)?;
    let run = runs.into_iter().find(|run| run.published_at == Some(facts.dates.modified));
    Ok(run.is_none_or(|run| run.started_at >= since))
}

type Failed = (crate::job::Failure, String);

/// The base's failure, if it is one that counts for this job: since it was submitted, or still held.
fn failure_of(home: &Home, store: &dyn Store, job: &Job, filename: &str, now: DateTime<Utc>) -> Result<Option<Failed>> {
    let Some(base) = store.find(filename)? else {
        return Ok(None);
    };
    let Phase::Failed { reason, detail, at, .. } = base.phase else {
        return Ok(None);
    };
    let is_held = rules::hold_left(reason, at, home.config.failures.hold.0, now).is_some();
    let counts = is_held || (at >= job.submitted_at && reason != crate::job::Failure::WaitExpired);
    Ok(counts.then_some((reason, detail)))
}

fn ask_for(home: &Home, job: &Job, key: Key, filename: String) -> Ask {
    let base_of_base = key.base(&home.config).map(|key| key.filename(&home.config.extension(&key.format)));
    Ask {
        queue: queue_of_base(home, job, &key),
        base_filename: base_of_base,
        filename,
        key,
        client: None,
        meta: None,
        pages: None,
        priority: job.priority,
        rank: Some(job.rank),
        not_before: None,
        wait_until: None,
        refresh: job.newer_than.is_some(),
        retry: false,
        hold: home.config.failures.hold.0,
        bounds: QueueBounds::default(),
    }
}

/// A job that was sent to another queue than its format's takes its base with it.
fn queue_of_base(home: &Home, job: &Job, base: &Key) -> String {
    let was_sent = job.queue != home.config.queue_of_format(&job.key.format);
    if was_sent && home.config.queue.contains_key(&job.queue) {
        return job.queue.clone();
    }
    home.config.queue_of_format(&base.format).to_owned()
}
