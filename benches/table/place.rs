//! A queue to measure: its own directory, driven through the built program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use export_queue::config;
use export_queue::key::{self, Selection};
use tempfile::TempDir;

use crate::timer;

/// The program that is measured: `EXPORT_QUEUE_PROGRAM`, or the one built beside this.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("EXPORT_QUEUE_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_export-queue").into(), PathBuf::from)
}

/// Where queues lie: on the disk of the build, or in `EXPORT_QUEUE_BENCH_DIR`.
fn base() -> PathBuf {
    std::env::var_os("EXPORT_QUEUE_BENCH_DIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}

/// The size of the file that `cp` exports, in bytes.
const SAMPLE: usize = 20_000;

/// A queue with one format, `bin`, made by `cp`.
pub(crate) struct Place {
    dir: TempDir,
    config: PathBuf,
}

impl Place {
    /// A queue of two slots.
    pub(crate) fn new() -> Self {
        fs::create_dir_all(base()).expect("a directory");
        Self::at(tempfile::tempdir_in(base()).expect("a directory"))
    }

    /// A queue on a file system without a disk behind it, for what is not about the disk.
    pub(crate) fn in_memory() -> Self {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir_in(base()) };
        Self::at(dir.expect("a directory"))
    }

    fn at(dir: TempDir) -> Self {
        let place = Self { config: dir.path().join("config.toml"), dir };
        let sample: Vec<u8> = (0..SAMPLE).map(|at| (at * 31 % 251) as u8).collect();
        fs::write(place.path("sample"), sample).expect("a sample");
        let text = format!(
            "state_dir = \"state\"\ndefaults.format = \"bin\"\ncache.dir = \"cache\"\n\
             [queue.default]\nslots = 2\nmin_free_disk = 0\nmax_queued = 0\n\
             [format.bin]\ncommand = {}\n",
            place.cp()
        );
        fs::write(&place.config, text).expect("a configuration");
        place.run(&["init", "--quiet"]);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command of the format.
    pub(crate) fn cp(&self) -> String {
        format!("[\"cp\", \"{}\", \"{{output}}\"]", self.path("sample").display())
    }

    /// Replaces pieces of the configuration.
    pub(crate) fn reconfigure(&self, changes: &[(&str, &str)]) {
        let mut text = fs::read_to_string(&self.config).expect("the configuration");
        for (old, new) in changes {
            assert!(text.contains(old), "{old} is not in the configuration");
            text = text.replace(old, new);
        }
        fs::write(&self.config, text).expect("a configuration");
    }

    /// A call of the program.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("--config").arg(&self.config).args(args);
        command
    }

    /// Calls the program; gives back its exit code.
    pub(crate) fn run(&self, args: &[&str]) -> i32 {
        let status = self.command(args).stdin(Stdio::null()).stdout(Stdio::null()).status().expect("it can be started");
        status.code().unwrap_or(-1)
    }

    /// How long a call takes.
    pub(crate) fn time(&self, args: &[&str]) -> Duration {
        timer::whole(&mut self.command(args))
    }

    /// Starts a call that goes on.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it can be started"))
    }

    /// Asks for `count` titles, `NAME 0` and so on, in one batch; how long that took.
    pub(crate) fn fill(&self, name: &str, count: usize) -> Duration {
        let batch = self.path("batch");
        let lines: Vec<String> = (0..count).map(|number| format!("{{\"title\":\"{name} {number}\"}}\n")).collect();
        fs::write(&batch, lines.concat()).expect("a batch");
        let mut command = self.command(&["--quiet", "request", "--batch"]);
        timer::whole(command.arg(&batch))
    }

    /// Publishes `count` small files of that age and, if asked for, their runs, by no export.
    pub(crate) fn publish(&self, name: &str, count: usize, age: Duration, with_runs: bool) {
        let loaded = config::load(Some(&self.config), &std::collections::BTreeMap::new()).expect("a configuration");
        let date = std::time::SystemTime::from(export_queue::clock::now()) - age;
        let mut conn = self.database();
        let tx = conn.transaction().expect("a transaction");
        for number in 0..count {
            let title = format!("{name} {number}");
            let selection = Selection { title: title.clone(), ..Selection::default() };
            let filename = key::resolve(&loaded.config, &selection).expect("a key").filename("bin");
            let shard = self.path("cache").join(key::shard(&filename));
            if number < 4096 {
                fs::create_dir_all(&shard).expect("a shard");
            }
            let mut file = fs::File::create(shard.join(&filename)).expect("a file");
            file.write_all(b"x").and_then(|()| file.set_modified(date)).expect("a file");
            if with_runs {
                let millis = chrono::DateTime::<chrono::Utc>::from(date).timestamp_millis();
                tx.prepare_cached(
                    "INSERT INTO runs (token, job_id, title, lang, font, format, options, filename, queue, node, outcome,
                     submitted_at, started_at, finished_at, published_at, bytes, present)
                     VALUES (?1, ?2, ?3, 'en', 'default', 'bin', '{}', ?4, 'default', 'n', 'ready', ?5, ?5, ?5, ?5, 1, 1)",
                )
                .and_then(|mut insert| insert.execute((format!("{number:020x}"), number as i64, &title, &filename, millis)))
                .expect("a run");
            }
        }
        tx.commit().expect("the runs");
    }

    /// The database, beside the program.
    pub(crate) fn database(&self) -> rusqlite::Connection {
        let conn = rusqlite::Connection::open(self.path("state/queue.db")).expect("the database");
        conn.busy_timeout(Duration::from_secs(10)).expect("a busy timeout");
        conn
    }
}

/// A call that goes on; it is asked to end when this goes.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}
