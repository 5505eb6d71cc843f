//! What tests stand on: a queue in a directory of its own, driven through the built program, and the fake exporter.
//!
//! Nothing here sleeps to wait: [`eventually`] looks again until it holds or a generous time is over. After each test the
//! promises that hold at every moment are looked at once more ([`Queue::assert_sound`]).

#[cfg(feature = "postgres")]
pub(crate) mod hosts;
#[cfg(feature = "postgres")]
pub(crate) mod server;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_export-queue");

/// How long [`eventually`] goes on looking.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again until `what` holds; fails the test with its last words otherwise.
#[track_caller]
pub(crate) fn eventually<T>(story: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let start = now();
    loop {
        if let Some(value) = what() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "never: {story}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[expect(clippy::disallowed_methods, reason = "tests measure real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What a call printed and how it ended.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: i32,
    call: String,
}

impl Said {
    fn of(call: String, output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = Self {
            out: text(&output.stdout),
            err: text(&output.stderr),
            code: output.status.code().unwrap_or(-1),
            call,
        };
        assert!(said.code != 101 && said.code != 134, "it panicked: {said:?}");
        said
    }

    /// Ends the test unless the call ended with that code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\nstdout: {}\nstderr: {}", self.call, self.out, self.err);
        self
    }

    /// The one line of JSON that it printed.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}\nstdout: {}\nstderr: {}", self.call, self.out, self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Every line of JSON that it printed.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Ends the test unless it printed nothing at all.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        assert_eq!((self.out.as_str(), self.err.as_str()), ("", ""), "{}", self.call);
        self
    }
}

/// Calls a program as it was set up, and waits for it.
pub(crate) fn call(command: &mut Command) -> Said {
    let output = command.output().expect("the program can be started");
    Said::of(format!("{command:?}"), &output)
}

/// A queue in a directory of its own; every process of it is ended when it goes.
pub(crate) struct Queue {
    dir: TempDir,
    env: BTreeMap<String, String>,
    /// What the program is called by: the way into a host of the tests' own.
    way: Vec<String>,
    #[cfg(feature = "postgres")]
    shared: Option<(&'static server::Server, String)>,
}

impl Queue {
    /// A queue with the fake exporter as its formats (`ok`, `slow`, …, each with extension `txt`) and N = 2; `more` is
    /// added to the configuration and may begin with further keys of `[queue.default]`.
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// A queue whose configuration has `more` at its end.
    pub(crate) fn with(more: &str) -> Self {
        let queue = Self::bare();
        queue.configure(&format!("{}{more}", queue.base_config()));
        queue
    }

    /// A queue on PostgreSQL, in a fresh database of a server.
    #[cfg(feature = "postgres")]
    pub(crate) fn on(server: &'static server::Server, more: &str) -> Self {
        let mut queue = Self::bare();
        let database = server.fresh_database();
        let url = server.url(&database);
        queue.configure(&format!("database = \"{url}\"\n{}{more}", queue.base_config()));
        queue.shared = Some((server, database));
        queue
    }

    /// Another machine of a queue on PostgreSQL: the same database and cache, a state directory of its own; its fake exporters
    /// write to the scratch directory of the first.
    #[cfg(feature = "postgres")]
    pub(crate) fn beside(first: &Self) -> Self {
        let mut queue = Self::bare();
        let text = fs::read_to_string(first.path("config.toml")).expect("a configuration");
        let cache = format!("dir = \"{}\"", first.path("cache").display());
        queue.configure(&text.replace("dir = \"cache\"", &cache));
        queue.shared.clone_from(&first.shared);
        queue
    }

    /// Says that the queue is kept in the database of a URL from now on.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_on(&mut self, server: &'static server::Server, url: &str) {
        let database = url.split(['/', '?']).nth(3).expect("a database");
        self.shared = Some((server, database.to_owned()));
    }

    /// Says that the queue is kept in SQLite from now on.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_on_sqlite(&mut self) {
        self.shared = None;
    }

    /// A directory without a configuration.
    fn bare() -> Self {
        let queue = Self {
            dir: tempfile::tempdir().expect("a directory"),
            env: BTreeMap::new(),
            way: Vec::new(),
            #[cfg(feature = "postgres")]
            shared: None,
        };
        fs::create_dir(queue.path("books")).expect("a directory");
        queue
    }

    /// The configuration that every test starts from.
    pub(crate) fn base_config(&self) -> String {
        let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/fake");
        let scratch = self.dir.path().display();
        let mut text = String::from(
            "state_dir = \"state\"\n\
             [cache]\ndir = \"cache\"\n\
             [defaults]\nformat = \"ok\"\n\
             [queue.default]\nslots = 2\nmin_free_disk = 0\n\
             [limits]\ntimeout = \"60s\"\nkill_grace = \"1s\"\n\
             [failures]\nhold = \"60s\"\n",
        );
        for kind in KINDS {
            text.push_str(&format!(
                "[format.{kind}]\nextension = \"txt\"\nenv = {{ SCRATCH = \"{scratch}\" }}\n\
                 command = [\"{fake}\", \"{kind}\", \"{{output}}\", \"--\", \"{{title}}\"]\n"
            ));
        }
        text
    }

    /// Writes the configuration anew.
    pub(crate) fn configure(&self, text: &str) {
        // By rename, as an operator's editor does it: a worker that reads it meanwhile reads one or the other.
        let new = self.path("config.new");
        fs::write(&new, text).expect("the configuration can be written");
        fs::rename(new, self.path("config.toml")).expect("the configuration can be replaced");
    }

    /// Changes the configuration by replacing a text that must be in it.
    pub(crate) fn reconfigure(&self, old: &str, new: &str) {
        let text = fs::read_to_string(self.path("config.toml")).expect("the configuration can be read");
        assert!(text.contains(old), "{old} is not in {text}");
        self.configure(&text.replace(old, new));
    }

    /// Sets a variable for all later calls.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// From now on the program is called on a host of the tests' own.
    #[cfg(feature = "postgres")]
    pub(crate) fn move_to(&mut self, host: &hosts::Host) {
        self.way = host.way();
    }

    /// A path in the queue's directory.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with this queue's configuration, to be called.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut words = self.way.iter().map(String::as_str).chain([PROGRAM]);
        let mut command = Command::new(words.next().unwrap_or(PROGRAM));
        command.args(words).arg("--config").arg(self.path("config.toml")).args(args);
        command.stdin(Stdio::null()).envs(&self.env).current_dir("/");
        command
    }

    /// Calls the program and waits for it.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        let mut command = self.command(args);
        let output = command.output().expect("the program can be started");
        Said::of(format!("{command:?}"), &output)
    }

    /// Starts the program and leaves it running; killed when dropped.
    pub(crate) fn spawn<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("the program can be started")))
    }

    /// Asks for a title in a format; the status object.
    pub(crate) fn request(&self, format: &str, title: &str) -> Value {
        self.run(["--json", "--exit-zero", "request", "--format", format, "--", title]).code(0).json()
    }

    /// The status object of a title in a format.
    pub(crate) fn status(&self, format: &str, title: &str) -> Value {
        self.run(["--json", "--exit-zero", "status", "--format", format, "--", title]).code(0).json()
    }

    /// The state of a title in a format.
    pub(crate) fn state(&self, format: &str, title: &str) -> String {
        text(&self.status(format, title)["state"])
    }

    /// One patient tick: comes back when its workers have ended.
    pub(crate) fn dispatch(&self) -> Said {
        self.run(["dispatch", "--wait"])
    }

    /// Waits until a title is in a state; the status object then.
    #[track_caller]
    pub(crate) fn await_state(&self, format: &str, title: &str, state: &str) -> Value {
        eventually(&format!("{title} becomes {state}"), || {
            Some(self.status(format, title)).filter(|status| status["state"] == state)
        })
    }

    /// Lines that the fake exporter wrote about itself to a scratch file (`PIDS`, `LOG`, `ENVOUT`, `ARGS`).
    pub(crate) fn scratch(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The published files.
    pub(crate) fn published(&self) -> Vec<PathBuf> {
        let shards = fs::read_dir(self.path("cache")).into_iter().flatten().flatten();
        let shards = shards.filter(|entry| entry.file_name().len() == 2);
        let files = shards.flat_map(|shard| fs::read_dir(shard.path()).into_iter().flatten().flatten());
        let mut paths: Vec<_> = files.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// Work directories that are there.
    pub(crate) fn work_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache/.work")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Sets the age of a published file, as if it had been published that long ago.
    pub(crate) fn age(file: &Path, age: Duration) {
        let file = fs::File::open(file).expect("a published file");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + since_epoch() - age).expect("its date can be set");
    }

    /// Processes of this queue's exporters and workers, by the configuration's path or the scratch directory in what they
    /// were started with.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let needle = self.dir.path().to_string_lossy().into_owned();
        processes()
            .into_iter()
            .filter(|process| process.command.contains(&needle) || process.environment.contains(&needle))
            .collect()
    }

    /// The workers.
    pub(crate) fn workers(&self) -> Vec<Process> {
        self.processes()
            .into_iter()
            .filter(|process| process.command.contains("export-queue") && process.command.contains("\0work\0"))
            .collect()
    }

    /// The exporters: whatever carries a run's marker.
    pub(crate) fn exporters(&self) -> Vec<Process> {
        let marked = |process: &Process| process.environment.contains("EXPORT_QUEUE_RUN=");
        self.processes().into_iter().filter(marked).collect()
    }

    /// Runs an SQL statement on the database (as a test's own hand, behind the program's back).
    pub(crate) fn sql(&self, sql: &str) -> Vec<String> {
        #[cfg(feature = "postgres")]
        if let Some((server, database)) = &self.shared {
            return server.sql(database, sql);
        }
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_CREATE;
        let path = self.path("state/queue.db");
        let conn = rusqlite::Connection::open_with_flags(path, flags).expect("the database opens");
        conn.busy_timeout(Duration::from_secs(10)).expect("a timeout");
        let mut statement = conn.prepare(sql).expect("the statement is right");
        let columns = statement.column_count();
        let mut rows = statement.query([]).expect("the statement runs");
        let mut lines = Vec::new();
        while let Some(row) = rows.next().expect("a row") {
            let cell = |column| match row.get_ref(column).expect("a cell") {
                rusqlite::types::ValueRef::Null => String::new(),
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                rusqlite::types::ValueRef::Real(number) => number.to_string(),
                rusqlite::types::ValueRef::Text(text) | rusqlite::types::ValueRef::Blob(text) => {
                    String::from_utf8_lossy(text).into_owned()
                }
            };
            lines.push((0..columns).map(cell).collect::<Vec<_>>().join("|"));
        }
        lines
    }

    #[cfg_attr(not(feature = "postgres"), expect(clippy::unused_self, reason = "there is only SQLite"))]
    fn is_sqlite(&self) -> bool {
        #[cfg(feature = "postgres")]
        return self.shared.is_none();
        #[cfg(not(feature = "postgres"))]
        true
    }

    /// What must be true at every moment, looked at from outside.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        if !self.path("state/queue.id").exists() {
            return;
        }
        if self.is_sqlite() && self.path("state/queue.db").exists() {
            assert_eq!(self.sql("PRAGMA integrity_check"), ["ok"]);
        }
        let twice = self.sql("SELECT filename FROM jobs GROUP BY filename HAVING count(*) > 1");
        assert!(twice.is_empty(), "more than one row: {twice:?}");
        for file in self.published() {
            let meta = fs::symlink_metadata(&file).expect("a published file");
            assert!(meta.is_file() && meta.len() > 0 && meta.nlink() == 1, "{} is not whole", file.display());
        }
    }

    /// That nothing runs and nothing of a dead run is left.
    #[track_caller]
    pub(crate) fn assert_quiet(&self) {
        self.assert_sound();
        eventually("nothing of a run is left", || {
            (self.exporters().is_empty() && self.workers().is_empty() && self.work_dirs().is_empty()).then_some(())
        });
        let started = self.sql("SELECT id FROM jobs WHERE state = 1");
        assert!(started.is_empty(), "started with nobody behind it: {started:?}");
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for process in self.processes() {
            process.kill("KILL");
        }
        if std::thread::panicking() {
            eprintln!("--- the queue of the failed test");
            if self.path("state/queue.id").exists() {
                for row in self
                    .sql("SELECT id, title, format, state, reason, detail, attempts, interruptions FROM jobs LIMIT 50")
                {
                    eprintln!("job {row}");
                }
            }
            eprintln!("{}", fs::read_to_string(self.path("state/logs/worker.txt")).unwrap_or_default());
        }
    }
}

/// A call that goes on; killed when dropped.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.0.as_ref().map_or(0, |child| child.id().cast_signed())
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| child.try_wait().expect("the child can be waited for").is_some())
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Said {
        let child = self.0.take().expect("it is waited for once");
        Said::of("a call in the background".to_owned(), &child.wait_with_output().expect("its output"))
    }

    pub(crate) fn signal(&self, name: &str) {
        kill(self.pid(), name);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process, as `/proc` shows it; arguments and variables are separated by NUL.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) command: String,
    pub(crate) environment: String,
}

impl Process {
    pub(crate) fn kill(&self, signal: &str) {
        kill(self.pid, signal);
    }

    /// Kills it and waits until it is dead: what it held is free then.
    #[track_caller]
    pub(crate) fn slay(&self) {
        self.kill("KILL");
        eventually(&format!("process {} is dead", self.pid), || (!self.lives()).then_some(()));
    }

    pub(crate) fn lives(&self) -> bool {
        lives(self.pid)
    }
}

/// Sends a signal by name.
pub(crate) fn kill(pid: i32, signal: &str) {
    // A process that is gone already is what the caller wanted.
    let _ = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Whether a process is there and no zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let read = |pid: i32, file: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    };
    pids.filter(|pid| lives(*pid) && *pid != std::process::id().cast_signed())
        .map(|pid| Process { pid, command: read(pid, "cmdline"), environment: read(pid, "environ") })
        .collect()
}

/// The text of a JSON value.
#[track_caller]
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

#[expect(clippy::disallowed_methods, reason = "tests set the dates of files")]
pub(crate) fn since_epoch() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).expect("a time after 1970")
}

/// Makes a file executable.
pub(crate) fn make_executable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
}

/// The kinds of the fake exporter, each a format of that name.
pub(crate) const KINDS: &[&str] = &[
    "ok", "slow", "none", "zero", "code1", "die9", "half9", "part", "fork", "away", "noterm", "daemon", "late",
    "flood", "stdin", "env", "args", "ext", "prof", "mark", "junk", "ascii",
];
