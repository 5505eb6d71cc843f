//! What people would use instead, each by its own command line; `benches/peers` installs them. One that is not there is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::timer::{now, whole};

/// How many jobs a peer's list holds before it is asked.
const JOBS: usize = 1000;

/// A peer that answers a call.
pub(crate) struct Peer {
    pub(crate) name: String,
    program: PathBuf,
    args: Vec<String>,
    dir: TempDir,
}

/// A peer that runs many commands, two at a time.
pub(crate) struct Runner {
    pub(crate) name: &'static str,
    script: &'static str,
}

fn found(program: &str) -> Option<PathBuf> {
    let found = which::which(program).ok();
    if found.is_none() {
        eprintln!("{program} is not installed: not compared (benches/peers installs it)");
    }
    found
}

impl Peer {
    fn new(name: &str, program: &str, args: &[&str]) -> Option<Self> {
        let program = found(program)?;
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Some(Self { name: name.to_owned(), program, args, dir: tempfile::tempdir().expect("a directory") })
    }

    /// Its surroundings are its own: queues of the caller are neither seen nor changed.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let dir = self.dir.path();
        command.current_dir(dir).env("TS_SOCKET", dir.join("tsp")).env("NQDIR", dir).env("HOME", dir);
        for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
            command.env(variable, dir);
        }
        command
    }

    /// How long one call takes.
    pub(crate) fn time(&self) -> Duration {
        whole(self.command().args(&self.args))
    }

    /// Whether a call of it succeeds.
    fn run(&self, args: &[&str]) -> bool {
        let mut command = self.command();
        let status = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        match self.name.split_whitespace().next() {
            Some("`tsp") => self.run(&["-K"]),
            Some("`pueue") => self.run(&["shutdown"]),
            _ => true,
        };
    }
}

/// A list of [`JOBS`] jobs, in the peers that keep one.
pub(crate) fn status() -> Vec<Peer> {
    let tsp = Peer::new("`tsp` (list of 1,000)", "tsp", &[]).inspect(|peer| {
        (0..JOBS).for_each(|_| assert!(peer.run(&["-n", "true"]), "tsp takes a job"));
    });
    let pueue = pueue("`pueue status --json` (1,000 jobs)", &["status", "--json"]).inspect(|peer| {
        (0..JOBS).for_each(|_| assert!(peer.run(&["add", "--", "true"]), "pueue takes a job"));
    });
    let pdf_bot = Peer::new("`pdf-bot jobs`", "pdf-bot", &["jobs"]);
    let node = Peer::new("`node -e 1`", "node", &["-e", "1"]);
    let python = Peer::new("`python3 -c 'import sqlite3'`", "python3", &["-c", "import sqlite3"]);
    [tsp, pueue, pdf_bot, node, python].into_iter().flatten().collect()
}

/// One more job.
pub(crate) fn request() -> Vec<Peer> {
    let tsp = Peer::new("`tsp` (in memory)", "tsp", &["-n", "true"]);
    let nq = Peer::new("`nq` (a file a job)", "nq", &["-q", "true"]);
    let pdf_bot = Peer::new("`pdf-bot push`", "pdf-bot", &["push", "http://localhost/"]);
    [tsp, nq, pueue("`pueue add`", &["add", "--", "true"]), pdf_bot].into_iter().flatten().collect()
}

fn pueue(name: &str, args: &[&str]) -> Option<Peer> {
    let daemon = found("pueued")?;
    Peer::new(name, "pueue", args).inspect(|peer| {
        let mut start = peer.command();
        start = with_surroundings(Command::new(&daemon), &start);
        let _ = start.arg("--daemonize").stdout(Stdio::null()).stderr(Stdio::null()).status();
        let until = now() + Duration::from_secs(10);
        while !peer.run(&["status"]) {
            assert!(now() < until, "pueued answers");
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}

/// The same surroundings for another program.
fn with_surroundings(mut command: Command, like: &Command) -> Command {
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Runners of many commands.
pub(crate) fn exports() -> Vec<Runner> {
    let runners = [
        (
            "tsp",
            "`tsp`",
            "tsp -S 2; for n in $(seq $N); do tsp -n cp \"$SAMPLE\" \"$OUT/$n\"; done >/dev/null; tsp -w; tsp -K",
        ),
        ("parallel", "`parallel -j2`", "seq $N | parallel -j2 cp \"$SAMPLE\" \"$OUT\"/{}"),
    ];
    runners
        .into_iter()
        .filter(|(program, ..)| found(program).is_some())
        .map(|(_, name, script)| Runner { name, script })
        .collect()
}

impl Runner {
    /// How long it takes to copy `sample` into `out` so many times.
    pub(crate) fn time(&self, sample: &Path, out: &Path, count: usize) -> Duration {
        let mut shell = Command::new("sh");
        shell.args(["-c", self.script]).env("SAMPLE", sample).env("OUT", out).env("N", count.to_string());
        shell.env("TS_SOCKET", out.join("tsp"));
        let took = whole(&mut shell);
        let made = fs::read_dir(out).expect("the directory").count();
        assert!(made >= count, "{} made {made} of {count}", self.name);
        took
    }
}
