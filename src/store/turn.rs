//! How a write waits for another process's write, and how it comes to the disk.
//!
//! SQLite's own way to wait sleeps ever longer, so that whoever has waited longest looks most seldom: with 64 at once some never
//! got their turn. Here all look equally often. (A line in which each is called in his turn was tried, a `flock` on the log: when
//! the processors are busy, the one who is called is not the one who runs, and all wait for him.)
//!
//! What counts is that nobody holds the write lock for long. So a commit is synced before anybody is told of it, but after the
//! lock was let go of: others write meanwhile, and one sync brings all to the disk that was committed before it began. A commit
//! may be seen a moment before it is safe; who tells others of it syncs the log himself before, for a sync of the log is one of
//! all that stands in it.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rusqlite::{Connection, ffi};

use crate::exit::Refusal;

/// How long a write waits for its turn, and between two looks.
const PATIENCE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(4);

/// The write-ahead log of a database, as a connection knows it.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    state: Cell<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its name may be new and not on the disk.
    New,
    /// Its name is on the disk.
    Named,
    /// What was committed could not be brought to the disk: nothing that is seen is safe to build on.
    Broken,
}

impl Log {
    /// The log of that database.
    pub(super) fn of(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self { path: path.into(), state: Cell::new(State::New) }
    }

    /// Looks whether what is seen in the database may be built on.
    ///
    /// # Errors
    /// The disk did not keep what was written (75).
    pub(super) fn check(&self) -> Result<()> {
        let is_broken = self.state.get() == State::Broken;
        if is_broken { Err(Refusal::try_later("the disk did not keep what was written")) } else { Ok(()) }
    }

    /// Brings what was committed to the disk.
    ///
    /// # Errors
    /// The disk refuses (75): what was committed is seen and not safe, and this connection builds on nothing more.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = File::open(&self.path).and_then(|log| log.sync_data()).and_then(|()| self.sync_name());
        self.state.set(if synced.is_ok() { State::Named } else { State::Broken });
        synced.map_err(|error| Refusal::try_later(format!("the disk does not keep what is written: {error}")))
    }

    /// The name, once: somebody may have made the log a moment ago.
    fn sync_name(&self) -> io::Result<()> {
        match self.state.get() {
            State::New => File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all(),
            State::Named | State::Broken => Ok(()),
        }
    }
}

/// Each commit is synced here, and the `-wal` and `-shm` files stay in place when the last connection closes.
pub(super) fn keep_log(conn: &Connection) -> Result<()> {
    conn.execute_batch("PRAGMA synchronous = NORMAL")?;
    conn.query_row("PRAGMA journal_size_limit = 4194304", [], |_| Ok(()))?;
    let mut on: std::ffi::c_int = 1;
    // SAFETY: the handle is open, "main" is a C string, and this operation reads and writes one int behind the pointer.
    let code = unsafe {
        ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_PERSIST_WAL, (&raw mut on).cast())
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(anyhow!("cannot keep the write-ahead log: code {code}")) }
}

/// Lets writes of a connection wait for their turn.
pub(super) fn wait(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.busy_handler(Some(|looks: i32| {
        thread::sleep(LOOK);
        LOOK * looks.unsigned_abs() < PATIENCE
    }))
}

/// Does something that gives up at once where it is not its turn.
pub(super) fn or_never<T>(conn: &mut Connection, body: impl FnOnce(&mut Connection) -> T) -> rusqlite::Result<T> {
    conn.busy_timeout(Duration::ZERO)?;
    let done = body(conn);
    wait(conn)?;
    Ok(done)
}
