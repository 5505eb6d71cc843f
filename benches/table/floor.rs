//! What the machine allows: the least that anybody would have to do for the same, without this program.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::place::Place;
use crate::timer::time;

/// So many files by `cp`, two at a time, each as durable as an export: the file synced, renamed into one of 256 directories,
/// the directory synced, and one row committed with `synchronous=FULL`.
pub(crate) fn copies(place: &Place, name: &str, count: usize) -> Duration {
    let dir = place.path(name);
    for shard in 0..256 {
        fs::create_dir_all(dir.join(format!("{shard:02x}"))).expect("a shard");
    }
    let database = dir.join("done.db");
    connect(&database).execute_batch("CREATE TABLE done (name TEXT)").expect("a table");
    let (sample, next) = (place.path("sample"), AtomicUsize::new(0));
    let work = || {
        let mut done = connect(&database);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            copy(&sample, &dir, number, &mut done);
        }
    };
    let (took, ()) = time(|| {
        std::thread::scope(|scope| {
            scope.spawn(work);
            scope.spawn(work);
        });
    });
    took
}

fn connect(database: &Path) -> Connection {
    let conn = Connection::open(database).expect("a database");
    conn.busy_timeout(Duration::from_secs(10)).expect("a busy timeout");
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).expect("a log");
    conn.execute_batch("PRAGMA synchronous = FULL").expect("durable commits");
    conn
}

fn copy(sample: &Path, dir: &Path, number: usize, done: &mut Connection) {
    let made = dir.join(format!("made-{number}"));
    let shard = dir.join(format!("{:02x}", number % 256));
    let copied = Command::new("cp").arg(sample).arg(&made).stdin(Stdio::null()).status().expect("cp");
    assert!(copied.success(), "cp copies");
    File::open(&made).and_then(|file| file.sync_all()).expect("a file on the disk");
    fs::rename(&made, shard.join(number.to_string())).expect("a name");
    File::open(&shard).and_then(|shard| shard.sync_all()).expect("a name on the disk");
    let tx = done.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction");
    tx.execute("INSERT INTO done VALUES (?1)", [number as i64]).expect("a row");
    tx.commit().expect("a commit");
}

/// The argument by which this program is [`insert`].
pub(crate) const INSERT: &str = "--insert";

/// The least that keeps a request: one row of one table, committed with `synchronous=FULL`.
pub(crate) fn insert(database: &Path) {
    connect(database).execute("INSERT INTO done VALUES ('x')", []).expect("a row");
}

/// A database for [`insert`], held open as a dispatcher would hold it.
pub(crate) fn held(database: &Path) -> Connection {
    let held = connect(database);
    held.execute_batch("CREATE TABLE done (name TEXT)").expect("a table");
    held
}
