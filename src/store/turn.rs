//! How a write waits for another process's write. SQLite has no queue for it: whoever looks at the right moment is next, and
//! with 64 at once some wait for hundreds of others. So writers stand in a line: a `flock` on the write-ahead log, which the
//! kernel gives in the order in which they came, and at once. (SQLite locks its other two files, and by `fcntl`.)
//!
//! The line is only for speed and fairness: a writer that waits in it for too long, or finds no log, goes on without it and
//! looks by itself; the lock that counts is SQLite's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fs2::FileExt;
use rusqlite::Connection;

/// How long a write waits in the line, how long for its turn after that, and between two looks.
const LINE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(4);

/// The file that the line is at.
pub(super) fn line(database: &Path) -> PathBuf {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Waits in the line; whoever is at its head holds the file until its write is over.
pub(super) fn stand_in(line: &Path) -> Option<File> {
    let file = File::open(line).ok()?;
    if FileExt::try_lock_exclusive(&file).is_ok() {
        return Some(file);
    }
    let (head, wait) = mpsc::channel();
    // The kernel's wait has no end of its own. Whoever gave up meanwhile drops the file, and its turn with it.
    let stand = move || FileExt::lock_exclusive(&file).map(|()| head.send(file));
    thread::Builder::new().name("line".to_owned()).stack_size(64 * 1024).spawn(stand).ok()?;
    wait.recv_timeout(LINE).ok()
}

/// Whether somebody is at the head of the line.
pub(super) fn is_taken(line: &Path) -> bool {
    File::open(line).is_ok_and(|file| FileExt::try_lock_exclusive(&file).is_err())
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
