//! The cache: published files in shards, private work directories, and the one lock.
//!
//! A file is *ours* when its path is `HH/NAME` of exactly the form that a key gives, regular, with one link; its content and
//! the database play no part. Nothing else is ever deleted, and no link is followed. Readers take no lock: a name appears by
//! rename, complete, and goes only after its promise is over. Publishing's rename and every deletion hold the lock, for
//! milliseconds. Where machines share the cache that lock may not reach from one to another: what decides there is which file
//! it is, never who holds the lock.

pub mod check;
mod publish;
mod work;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use walkdir::WalkDir;

pub use publish::Finished;
pub use work::WorkDir;
pub(crate) use work::is_token;

use crate::clock::from_millis;
use crate::fault;
use crate::key;
use crate::layout::Layout;
use crate::lock::{self, Held, Record};
use crate::retention::{Action, Dates, Policy, Standing};

/// What the directories are called in which a sweep has a last look at a file of a shared cache, and how long a sweep that
/// lives can need for that.
const ASIDE: &str = ".swept";
const ASIDE_FOR: TimeDelta = TimeDelta::minutes(10);

/// The cache of one queue.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Where it lies.
    pub layout: Layout,
    /// How long files stay.
    pub policy: Policy,
    /// The mode of published files.
    pub mode: u32,
    /// The group of published files.
    pub gid: u32,
    /// Other machines publish into it too.
    pub is_shared: bool,
}

/// A file of ours, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its path.
    pub path: PathBuf,
    /// Its name.
    pub filename: String,
    /// Device and inode.
    pub inode: (u64, u64),
    /// Its dates.
    pub dates: Dates,
    /// Its size.
    pub bytes: u64,
}

/// What one look at a file tells.
#[derive(Debug, Clone, Copy)]
struct Seen {
    inode: (u64, u64),
    dates: Dates,
    bytes: u64,
}

/// The proof that this process holds the cache lock, and the shards that it works in.
#[derive(Debug)]
pub struct CacheLock {
    held: Held,
    shards: Shards,
}

impl CacheLock {
    /// Lets go of the lock.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn release(self) -> io::Result<()> {
        self.held.release()
    }
}

/// Shards of one cache that were opened, for looking at many files: a shard that is made meanwhile is not seen.
#[derive(Debug, Default)]
pub struct Shards(BTreeMap<OsString, Option<OwnedFd>>);

impl Shards {
    /// The directory that a file of ours lies in; `None` when it is not there.
    fn of(&mut self, file: &Path) -> io::Result<Option<&OwnedFd>> {
        let name = file.parent().and_then(Path::file_name).unwrap_or_default();
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), open_shard(file)?);
        }
        Ok(self.0.get(name).and_then(Option::as_ref))
    }
}

/// Looks at a path; `None` when there is nothing of ours. A directory that is a link holds nothing of ours.
///
/// # Errors
/// The path cannot be looked at.
pub fn facts(path: &Path) -> io::Result<Option<Facts>> {
    open_shard(path)?.map_or(Ok(None), |shard| facts_in(&shard, path))
}

/// The directory that a file of ours lies in, following no link in its place; `None` when it is not there.
fn open_shard(path: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(shard) => Ok(Some(shard)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn facts_in(shard: &OwnedFd, path: &Path) -> io::Result<Option<Facts>> {
    let Some(filename) = path.file_name().and_then(|name| name.to_str()).filter(|name| key::is_published_name(name))
    else {
        return Ok(None);
    };
    let facts = |Seen { inode, dates, bytes }| {
        let (path, filename) = (path.to_owned(), filename.to_owned());
        Facts { path, filename, inode, dates, bytes }
    };
    Ok(see(shard, filename)?.map(facts))
}

/// Looks at what has the name of a file of ours; `None` when it is none.
fn see(shard: &OwnedFd, filename: &str) -> io::Result<Option<Seen>> {
    let stat = match rustix::fs::statat(shard, filename, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    if !is_file || stat.st_nlink != 1 {
        return Ok(None);
    }
    let time = |secs: i64, nanos: u64| {
        from_millis(secs.saturating_mul(1000).saturating_add(i64::try_from(nanos / 1_000_000).unwrap_or(0)))
    };
    let dates = Dates {
        modified: time(stat.st_mtime, stat.st_mtime_nsec as u64),
        accessed: time(stat.st_atime, stat.st_atime_nsec as u64),
        changed: time(stat.st_ctime, stat.st_ctime_nsec as u64),
    };
    Ok(Some(Seen { inode: (stat.st_dev, stat.st_ino), dates, bytes: stat.st_size.unsigned_abs() }))
}

/// Gives a file its place back, unless there is a newer one, or another machine was quicker.
fn put_back(aside: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(aside, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !is_missing(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl Cache {
    /// The published file of that name, whether or not it is still ready.
    ///
    /// # Errors
    /// The cache cannot be looked at.
    pub fn find(&self, filename: &str) -> io::Result<Option<Facts>> {
        facts(&self.layout.published(filename))
    }

    /// The file of that name if its path may be handed out, with the end of the promise.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn ready(&self, filename: &str, now: DateTime<Utc>) -> io::Result<Option<(Facts, Option<DateTime<Utc>>)>> {
        self.ready_in(&mut Shards::default(), filename, now)
    }

    /// The same for one of many files.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn ready_in(
        &self,
        shards: &mut Shards,
        filename: &str,
        now: DateTime<Utc>,
    ) -> io::Result<Option<(Facts, Option<DateTime<Utc>>)>> {
        let path = self.layout.published(filename);
        let facts = shards.of(&path)?.map_or(Ok(None), |shard| facts_in(shard, &path))?;
        Ok(facts.and_then(|facts| match self.policy.standing(facts.dates, now) {
            Standing::Ready { until } if facts.bytes > 0 => Some((facts, until)),
            Standing::Ready { .. } | Standing::Expired | Standing::Due | Standing::Strange => None,
        }))
    }

    /// A ready file that fulfils a wish made at that time.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn fulfils(
        &self,
        filename: &str,
        wanted_since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> io::Result<Option<Facts>> {
        let ready = self.ready(filename, now)?.map(|(facts, _)| facts);
        Ok(ready.filter(|facts| facts.dates.modified >= wanted_since))
    }

    /// Takes the cache lock and signs it; `None` when somebody kept it for all of `patience`.
    ///
    /// # Errors
    /// The lock file cannot be opened, locked or written.
    pub fn lock(&self, record: Record, patience: Duration) -> io::Result<Option<CacheLock>> {
        let Some(held) = lock::take_within(&self.layout.cache_lock(), patience)? else {
            return Ok(None);
        };
        held.sign(record)?;
        Ok(Some(CacheLock { held, shards: Shards::default() }))
    }

    /// Every file of ours, without a lock and in no order; entries that cannot be read are passed to `trouble`.
    pub fn walk<'a>(&'a self, mut trouble: impl FnMut(String) + 'a) -> impl Iterator<Item = Facts> + 'a {
        let root = &self.layout.cache;
        let is_shard = |name: &OsStr| name.len() == 2;
        let mut shards = Shards::default();
        let walk = WalkDir::new(root).follow_links(false).min_depth(1).max_depth(2).into_iter();
        let entries = walk.filter_entry(move |entry| entry.depth() != 1 || is_shard(entry.file_name()));
        entries.filter_map(move |entry| match entry {
            Ok(entry) if entry.depth() == 2 && entry.file_type().is_file() => {
                let path = entry.path();
                let is_ours = path.parent()?.file_name()?.to_str()? == key::shard(entry.file_name().to_str()?);
                facts_in(shards.of(path).ok().flatten().filter(|_| is_ours)?, path).ok().flatten()
            }
            Ok(_) => None,
            Err(error) if error.io_error().is_some_and(is_missing) => None,
            Err(error) => {
                trouble(error.to_string());
                None
            }
        })
    }

    /// Deletes a file after a look at what it is once nobody can replace it any more: one that another machine has published in
    /// this very moment goes back to its place.
    fn delete_aside(&self, planned: &Facts) -> io::Result<bool> {
        let dir = tempfile::Builder::new().prefix(ASIDE).tempdir_in(self.layout.work())?;
        let aside = dir.path().join(&planned.filename);
        match fs::rename(&planned.path, &aside) {
            Err(error) if is_missing(&error) => return Ok(false),
            moved => moved?,
        }
        fault::point("sweep.aside")?;
        match fs::symlink_metadata(&aside) {
            Ok(meta) if (meta.dev(), meta.ino()) == planned.inode => {
                fault::point("sweep.after_unlink")?;
                Ok(true)
            }
            // Put back by a tick that took this sweep for dead.
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
            Ok(_) => put_back(&aside, &planned.path).map(|()| false),
        }
    }

    /// Puts back what sweeps that died had moved aside, for the next sweep to decide about: nobody knows whether they had
    /// looked at it.
    ///
    /// # Errors
    /// The directory of work directories cannot be read, or a file cannot be put back.
    pub fn put_back_aside(&self, now: DateTime<Utc>) -> io::Result<()> {
        for entry in fs::read_dir(self.layout.work())?.flatten() {
            let dir = entry.path();
            let is_aside = entry.file_name().as_encoded_bytes().starts_with(ASIDE.as_bytes());
            let is_old =
                |meta: fs::Metadata| meta.modified().is_ok_and(|at| now - DateTime::<Utc>::from(at) > ASIDE_FOR);
            if !is_aside || !entry.metadata().is_ok_and(is_old) {
                continue;
            }
            for file in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if let Some(name) = file.file_name().to_str().filter(|name| key::is_published_name(name)) {
                    put_back(&file.path(), &self.layout.published(name))?;
                }
            }
            work::remove_tree(&dir)?;
        }
        Ok(())
    }

    fn is_as_planned(&self, there: Dates, planned: Dates, now: DateTime<Utc>) -> bool {
        there.modified == planned.modified && self.policy.counted(there, now) == self.policy.counted(planned, now)
    }

    /// Notes at a file that it was handed out then, if that renews it; needs no lock, for no promise rests on it.
    ///
    /// # Errors
    /// The file cannot be looked at or changed.
    pub fn renew(&self, filename: &str, at: DateTime<Utc>) -> io::Result<()> {
        let path = self.layout.published(filename);
        let Some(shard) = open_shard(&path)? else {
            return Ok(());
        };
        match facts_in(&shard, &path)? {
            Some(file) if self.policy.renews(file.dates, at) => publish::set_access(&shard, filename, at),
            Some(_) | None => Ok(()),
        }
    }

    /// Carries out a plan for one file under the lock, if it still is the file that was looked at; says whether it was done.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn apply(&self, lock: &mut CacheLock, planned: &Facts, action: Action, now: DateTime<Utc>) -> io::Result<bool> {
        let Some(shard) = lock.shards.of(&planned.path)? else {
            return Ok(false);
        };
        match see(shard, &planned.filename)? {
            Some(there) if there.inode == planned.inode && self.is_as_planned(there.dates, planned.dates, now) => {}
            Some(_) | None => return Ok(false),
        }
        match action {
            Action::Keep => Ok(false),
            Action::Age => publish::set_date(shard, &planned.filename, self.policy.aged(now)).map(|()| true),
            Action::Delete => {
                fault::point("sweep.before_unlink")?;
                if self.is_shared {
                    return self.delete_aside(planned);
                }
                match rustix::fs::unlinkat(shard, &planned.filename, AtFlags::empty()) {
                    Ok(()) => {}
                    Err(Errno::NOENT) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
                fault::point("sweep.after_unlink")?;
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_machine_has_put_back_is_no_trouble() {
        let dir = tempfile::tempdir().unwrap();
        let (aside, path) = (dir.path().join("aside"), dir.path().join("path"));
        put_back(&aside, &path).unwrap();
        assert!(!path.exists());
        fs::write(&aside, "old").unwrap();
        put_back(&aside, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::write(&aside, "older").unwrap();
        fs::remove_file(&path).and_then(|()| fs::write(&path, "newer")).unwrap();
        put_back(&aside, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
    }
}
