//! Publishing: a checked file gets its mode, group and date, is synced, and appears under its name by one rename.

use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use rustix::fs::{AtFlags, Timespec, Timestamps};

use super::{Cache, CacheLock};
use crate::fault;

/// A file that is ready to be published: whole, checked, synced.
#[derive(Debug)]
pub struct Finished {
    path: PathBuf,
    inode: (u64, u64),
    /// Its size in bytes.
    pub bytes: u64,
    /// The date that it carries.
    pub published_at: DateTime<Utc>,
}

fn system_time(date: DateTime<Utc>) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(date.timestamp_millis()).unwrap_or(0))
}

fn stamp(date: DateTime<Utc>) -> Timespec {
    let millis = date.timestamp_millis().max(0);
    Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 }
}

fn set_times(shard: &OwnedFd, filename: &str, last_access: Timespec, last_modification: Timespec) -> io::Result<()> {
    let times = Timestamps { last_access, last_modification };
    Ok(rustix::fs::utimensat(shard, filename, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets the dates of a file in its shard, following no link.
pub(super) fn set_date(shard: &OwnedFd, filename: &str, date: DateTime<Utc>) -> io::Result<()> {
    set_times(shard, filename, stamp(date), stamp(date))
}

/// Sets when a file in its shard was last handed out, following no link.
pub(super) fn set_access(shard: &OwnedFd, filename: &str, at: DateTime<Utc>) -> io::Result<()> {
    let unchanged = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    set_times(shard, filename, stamp(at), unchanged)
}

impl Cache {
    /// Gives a checked file its mode, group and date and brings its data to the disk.
    ///
    /// # Errors
    /// Any of that fails, a full disk included.
    pub fn prepare(&self, path: &Path, file: &File, now: DateTime<Utc>) -> io::Result<Finished> {
        file.set_permissions(Permissions::from_mode(self.mode))?;
        let before = file.metadata()?;
        if before.gid() != self.gid {
            fchown(file, None, Some(self.gid))?;
        }
        file.set_times(FileTimes::new().set_modified(system_time(now)).set_accessed(system_time(now)))?;
        fault::point("publish.before_sync")?;
        file.sync_all()?;
        fault::point("publish.after_sync")?;
        let meta = file.metadata()?;
        Ok(Finished { path: path.to_owned(), inode: (meta.dev(), meta.ino()), bytes: meta.len(), published_at: now })
    }

    /// Makes the directory that a file of that name goes into.
    ///
    /// # Errors
    /// It cannot be made, or something else is in its place.
    pub fn make_shard(&self, filename: &str) -> io::Result<()> {
        let shard = self.layout.shard(filename);
        match fs::symlink_metadata(&shard) {
            Ok(meta) if meta.is_dir() => return Ok(()),
            Ok(_) => {
                return Err(io::Error::other(format!("{} is not a directory", shard.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match fs::create_dir(&shard) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        }
        let dir = File::open(&shard)?;
        fchown(&dir, None, Some(self.gid))?;
        dir.set_permissions(Permissions::from_mode(0o2750))?;
        File::open(&self.layout.cache)?.sync_all()
    }

    /// Lets the file appear under its name, in place of an older one. Whoever was held up since the file was prepared (frozen,
    /// suspended, waiting for the lock) gives it a new date first: its promise begins when it can be opened.
    ///
    /// # Errors
    /// What lies at its path is not the file that was checked, or the rename fails.
    pub fn rename(
        &self,
        _proof: &CacheLock,
        finished: &mut Finished,
        filename: &str,
        now: DateTime<Utc>,
    ) -> io::Result<()> {
        let meta = fs::symlink_metadata(&finished.path)?;
        if (meta.dev(), meta.ino(), meta.len()) != (finished.inode.0, finished.inode.1, finished.bytes) {
            return Err(io::Error::other("the file changed after it was checked"));
        }
        if now - finished.published_at > chrono::Duration::seconds(1) {
            File::open(&finished.path)?.set_modified(system_time(now))?;
            finished.published_at = now;
        }
        fault::point("publish.before_rename")?;
        fs::rename(&finished.path, self.layout.published(filename))?;
        fault::point("publish.after_rename")
    }

    /// Brings the rename to the disk.
    ///
    /// # Errors
    /// The directory cannot be synced.
    pub fn sync_shard(&self, filename: &str) -> io::Result<()> {
        File::open(self.layout.shard(filename))?.sync_all()
    }
}
