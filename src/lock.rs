//! Who holds what: slot locks, the cache lock, and the record by which a stuck holder is known.
//!
//! A lock is a `flock` on a file that is never renamed or unlinked by us. It belongs to the open file description, so it is
//! handed to a worker as its standard input without a gap, and the kernel lets go of it when the last holder dies: a lock
//! that can be taken proves its holder dead. After locking, path and descriptor must be the same inode, else somebody has
//! replaced the file and the lock means nothing.
//!
//! The holder keeps a [`Record`] in the file: who it is, what it is doing, and every ten seconds, from a thread of its own,
//! a reading of the monotonic clock. A record that stands still for a minute is a reason to end its writer (`recover`),
//! never a proof that it has ended.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use fs2::FileExt;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::identity::Identity;

/// How often the holder of a lock writes its reading of the clock.
pub const BEAT: Duration = Duration::from_secs(10);

/// How old that reading may be before the holder counts as stuck.
pub const SILENCE: Duration = Duration::from_secs(60);

/// The byte of a database's index that whoever writes in WAL mode keeps locked (SQLite's file format, "WAL locks").
pub const SQLITE_WRITE_BYTE: u64 = 120;

/// Room for a record in bytes; one write of that size, blanks at its end.
const RECORD_BYTES: usize = 1024;

/// What the holder of a lock says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// The boot it was written in; process identities mean nothing after another.
    pub boot: String,
    /// The holder.
    pub holder: Option<Identity>,
    /// The monotonic clock in milliseconds when it last gave a sign of life.
    pub beat: u64,
    /// The run it works on.
    pub token: Option<String>,
    /// The run that it claims in the transaction that ends that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The exporter: leader of the process group that is to be ended with it.
    pub leader: Option<Identity>,
}

impl Record {
    /// The runs that it names: the one in hand, and the one that was being claimed with its end.
    pub fn tokens(&self) -> impl Iterator<Item = &String> {
        self.token.iter().chain(&self.next)
    }
}

/// What can be read in a lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// A holder's record, perhaps a dead holder's.
    Record(Record),
    /// Nothing: the last holder let go in good order, or has not written yet.
    Blank,
    /// Something that is no record.
    Torn,
}

/// A lock that this process holds.
#[derive(Debug)]
pub struct Held {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    path: PathBuf,
    record: Mutex<Option<Record>>,
}

/// Opens a lock file without taking it, creating it (mode 0600) where it is missing.
///
/// # Errors
/// Anything but a regular file at that path, following no link.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.cast_signed());
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("is not a regular file")) }
}

/// Opens a file for this process alone, creating it where it is missing; `None` while another has it so. For notes that are
/// read and written anew in one go.
///
/// # Errors
/// The file cannot be opened or locked.
pub fn open_alone(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    match FileExt::try_lock_exclusive(&file) {
        Ok(()) => Ok(Some(file)),
        Err(error) if error.kind() == fs2::lock_contended_error().kind() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tries to take the lock at `path`; `None` when somebody has it.
///
/// # Errors
/// The file cannot be opened or locked, or is not the one at that path any more.
pub fn try_take(path: &Path) -> io::Result<Option<Held>> {
    let Some(file) = open_alone(path)? else {
        return Ok(None);
    };
    let held = Held::of(file, path);
    if held.is_in_place() { Ok(Some(held)) } else { Err(io::Error::other("was replaced while it was being locked")) }
}

/// Takes the lock at `path`, trying for at most `patience`; `None` when that was not enough.
///
/// # Errors
/// As [`try_take`].
pub fn take_within(path: &Path, patience: Duration) -> io::Result<Option<Held>> {
    let until = clock::monotonic() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(held) = try_take(path)? {
            return Ok(Some(held));
        }
        if clock::monotonic() >= until {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reads what the lock file at `path` says, without locking it.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> io::Result<Reading> {
    Ok(parse(&std::fs::read(path)?))
}

fn parse(bytes: &[u8]) -> Reading {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    if text.is_empty() {
        return Reading::Blank;
    }
    serde_json::from_str(text).map_or(Reading::Torn, Reading::Record)
}

impl Held {
    fn of(file: File, path: &Path) -> Self {
        Self { inner: Arc::new(Inner { file, path: path.to_owned(), record: Mutex::new(None) }) }
    }

    /// Takes over a lock that a dispatcher handed to this process as its standard input.
    ///
    /// # Errors
    /// Standard input is not the lock file at `path`, or its lock is not ours.
    pub fn from_stdin(path: &Path) -> io::Result<Self> {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Locking again what our own open file description has locked succeeds at once.
        FileExt::try_lock_exclusive(&file)?;
        let held = Self::of(file, path);
        if held.is_in_place() { Ok(held) } else { Err(io::Error::other("is not the slot that was handed over")) }
    }

    /// Whether the file at the lock's path still is the one that is locked.
    pub fn is_in_place(&self) -> bool {
        let (Ok(ours), Ok(there)) = (self.inner.file.metadata(), std::fs::symlink_metadata(&self.inner.path)) else {
            return false;
        };
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }

    /// Where the lock file lies.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What the last holder, dead or in good order, has left in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn left_behind(&self) -> io::Result<Reading> {
        let mut bytes = vec![0; RECORD_BYTES];
        let read = self.inner.file.read_at(&mut bytes, 0)?;
        Ok(parse(&bytes[..read]))
    }

    /// Writes the holder's record, with a fresh reading of the clock, and keeps that reading fresh from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn sign(&self, record: Record) -> io::Result<()> {
        let mut kept = self.inner.lock_record();
        let record = Record { beat: beat_now(), ..record };
        self.inner.write(Some(&record))?;
        *kept = Some(record);
        drop(kept);
        beat_for(&self.inner);
        Ok(())
    }

    /// Writes a record that names no holder, and at most a run whose processes are left, before the lock is handed to another
    /// process: that one signs as soon as it can. Until then a held lock belongs to whoever has it open, and not to this
    /// process, which goes on with other things.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn announce(&self, token: Option<String>) -> io::Result<()> {
        *self.inner.lock_record() = None;
        self.inner.write(Some(&Record { token, beat: beat_now(), ..Record::default() }))
    }

    /// Blanks the record and lets go of the lock.
    ///
    /// # Errors
    /// The record cannot be blanked; the lock is let go of all the same, and the record then names a holder that is dead.
    pub fn release(self) -> io::Result<()> {
        *self.inner.lock_record() = None;
        let blanked = self.inner.write(None);
        FileExt::unlock(&self.inner.file)?;
        blanked
    }

    /// A second descriptor of the same lock, for the standard input of a process that is to hold it too.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn for_child(&self) -> io::Result<File> {
        self.inner.file.try_clone()
    }
}

impl Inner {
    fn lock_record(&self) -> MutexGuard<'_, Option<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, record: Option<&Record>) -> io::Result<()> {
        let text = record.map(serde_json::to_string).transpose().map_err(io::Error::other)?.unwrap_or_default();
        let mut bytes = vec![b' '; RECORD_BYTES];
        let room = bytes.get_mut(..text.len()).ok_or_else(|| io::Error::other("the record is too long"))?;
        room.copy_from_slice(text.as_bytes());
        self.file.write_all_at(&bytes, 0)
    }

    fn beat(&self) {
        let mut record = self.lock_record();
        if let Some(record) = record.as_mut() {
            record.beat = beat_now();
            if let Err(error) = self.write(Some(record)) {
                tracing::warn!("cannot write the record of {}: {error}", self.path.display());
            }
        }
    }
}

fn beat_now() -> u64 {
    u64::try_from(clock::monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// The locks that the beating thread of this process keeps fresh.
static BEATING: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn beat_for(inner: &Arc<Inner>) {
    static THREAD: Once = Once::new();
    let mut beating = BEATING.lock().unwrap_or_else(PoisonError::into_inner);
    let known = beating.iter().any(|weak| weak.as_ptr() == Arc::as_ptr(inner));
    if !known {
        beating.retain(|weak| weak.strong_count() > 0);
        beating.push(Arc::downgrade(inner));
    }
    drop(beating);
    THREAD.call_once(|| {
        let spawned = thread::Builder::new().name("beat".to_owned()).stack_size(64 * 1024).spawn(beat_for_ever);
        if let Err(error) = spawned {
            tracing::warn!("cannot start the thread that shows this process alive: {error}");
        }
    });
}

fn beat_for_ever() {
    loop {
        thread::sleep(BEAT);
        let locks: Vec<_> = {
            let beating = BEATING.lock().unwrap_or_else(PoisonError::into_inner);
            beating.iter().filter_map(Weak::upgrade).collect()
        };
        for inner in locks {
            inner.beat();
        }
    }
}

/// The process that holds a lock for writing on that byte of the file with that inode, or a `flock` on all of it, by the
/// kernel's own list: to open the file and close it again would take SQLite's locks from this process.
pub fn writer_of(inode: u64, byte: u64) -> Option<i32> {
    let list = std::fs::read_to_string("/proc/locks").ok()?;
    list.lines().find_map(|line| {
        // "1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 120 120"; a line with an arrow is of somebody who waits.
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, "POSIX" | "FLOCK", _, "WRITE", pid, file, from, to] = fields.as_slice() else {
            return None;
        };
        let is_there = file.rsplit(':').next()? == inode.to_string();
        let from: u64 = from.parse().ok()?;
        let is_on_it = from <= byte && to.parse().map_or(to == "EOF", |to: u64| byte <= to);
        pid.parse().ok().filter(|_| is_there && is_on_it)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_taken_once_and_free_after_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        let held = try_take(&path).unwrap().expect("nobody else has it");
        assert!(try_take(&path).unwrap().is_none());
        held.release().unwrap();
        assert!(try_take(&path).unwrap().is_some());
    }

    #[test]
    fn the_kernel_says_who_has_taken_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = try_take(&path).unwrap().unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        assert_eq!(writer_of(inode, 0), Some(std::process::id().cast_signed()));
        held.release().unwrap();
        assert_eq!(writer_of(inode, 0), None);
    }

    #[test]
    fn a_record_stays_behind_a_holder_that_just_dies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        let held = try_take(&path).unwrap().unwrap();
        held.sign(Record { token: Some("t".into()), ..Record::default() }).unwrap();
        drop(held);
        let next = try_take(&path).unwrap().unwrap();
        let Reading::Record(record) = next.left_behind().unwrap() else { panic!("no record") };
        assert_eq!(record.token.as_deref(), Some("t"));
        next.release().unwrap();
        assert_eq!(read(&path).unwrap(), Reading::Blank);
    }

    #[test]
    fn a_replaced_lock_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        let held = try_take(&path).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!held.is_in_place());
        std::fs::write(&path, "").unwrap();
        assert!(!held.is_in_place());
    }

    #[test]
    fn what_is_no_regular_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join("link")).unwrap();
        assert!(try_take(&dir.path().join("link")).is_err());
        assert!(try_take(dir.path()).is_err());
        assert!(!dir.path().join("nowhere").exists());
    }

    #[test]
    fn a_torn_record_is_told_from_a_blank_one() {
        assert_eq!(parse(b"  \0\0\n"), Reading::Blank);
        assert_eq!(parse(b"{\"boot\":"), Reading::Torn);
    }
}
