//! The storm: front ends, dispatches, sweeps and operators at once over a few hundred titles, while a killer sends signals
//! to processes of the queue at random and a checker looks at processes, files and rows from outside, ten times a second.
//!
//! `EXPORT_QUEUE_STORM_SECONDS` says how long it lasts, `EXPORT_QUEUE_TEST_SEED` what happens in it as far as chance decides;
//! `tests/storm [SECONDS] [SEED]` runs it alone. The first thing that is not as it must be ends it, with the story of its key.
//!
//! With `--postgres` it goes over three machines on one PostgreSQL, behind PgBouncer in transaction mode
//! (`EXPORT_QUEUE_STORM_SHARED_SECONDS`): now and then a machine loses its power for longer than a lease, and the server ends all
//! sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use export_queue::fault::MOMENTS;
use export_queue::process;
use rustix::process::Signal;
use serde_json::Value;

#[cfg(feature = "postgres")]
use crate::harness::server::Server;
use crate::harness::{Process, Queue, eventually, make_executable, now, since_epoch, text};
use crate::people::Disk;

/// How long it lasts where nobody says.
const SECONDS: u64 = 60;

const TITLES: u64 = 200;
/// Titles whose number leaves this rest are the operators' to cancel and dismiss; the others are never taken back.
const OPERATED: u64 = 3;

const MAX_AGE: Duration = Duration::from_secs(6);
const GRACE: Duration = Duration::from_secs(2);

/// The disk of the cache: room for all titles many times, and none for a filler.
const DISK: &str = "64m";

/// Queues, their slots on each machine, and their bound over all machines.
const QUEUES: &[(&str, usize, usize)] = &[("default", 2, 0), ("wide", 3, 0)];
const SHARED_QUEUES: &[(&str, usize, usize)] = &[("default", 1, 0), ("wide", 2, 4)];

/// How long a machine has a job for without a word.
const LEASE: Duration = Duration::from_secs(15);

/// What a storm goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    /// One machine.
    One,
    /// One machine, with everything switched on that people can steer with.
    Steered,
    /// Three machines and one PostgreSQL.
    #[cfg(feature = "postgres")]
    Shared,
}

impl Ground {
    fn queues(self) -> &'static [(&'static str, usize, usize)] {
        if self.is_shared() { SHARED_QUEUES } else { QUEUES }
    }

    fn is_shared(self) -> bool {
        !matches!(self, Self::One | Self::Steered)
    }
}

/// No call of a front end may take longer, on a busy machine too.
const GENEROUS: Duration = Duration::from_secs(30);

/// Formats: name, queue, further keys, what the exporter does after `half` has been written, and the reason with which it
/// must fail if nobody hits it.
const FORMATS: &[(&str, &str, &str, &str, Option<&str>)] = &[
    ("book", "default", "", "nap; rest", None),
    ("helped", "default", "", "setsid sleep 600 >/dev/null 2>&1 & nap; rest", None),
    ("flood", "default", "", "head -c 300000 /dev/zero | tr '\\0' x >&2; rest", None),
    ("bad", "default", "", "nap; echo 'no such page' >&2; exit 1", Some("exit_nonzero")),
    ("half", "default", "", "nap", Some("output_invalid")),
    ("gone", "default", "", "rm -f \"$output\"", Some("output_missing")),
    ("hang", "default", "timeout = \"1s\"", "sleep 600", Some("timed_out")),
    ("fork", "wide", "", "for n in 1 2 3; do (sleep 600) & done; nap; rest", None),
    (
        "away",
        "wide",
        "",
        "setsid bash -c '(env -i setsid bash -c \"sleep 600; :\" \"$0\" &) ; sleep 600' \"$output\" & nap; rest",
        None,
    ),
    (
        "deaf",
        "wide",
        "timeout = \"1s\"\nkill_grace = \"300ms\"",
        "trap '' TERM; (setsid sleep 600 &); while :; do sleep 1; done",
        Some("timed_out"),
    ),
    ("filler", "wide", "", "exec cat /dev/zero >>\"$output\"", Some("no_space")),
    ("copy", "wide", "base = \"book\"", "nap; rest", None),
];

/// Numbers that look random and are the same again for the same seed (xorshift64*).
struct Chance(u64);

impl Chance {
    /// One of many that come of one seed.
    fn of(seed: u64, number: u64) -> Self {
        let mut chance = Self((seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        for _ in 0..8 {
            chance.below(2);
        }
        chance
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn pick<'v, T>(&mut self, from: &'v [T]) -> Option<&'v T> {
        let index = self.below(from.len().max(1) as u64);
        from.get(index as usize)
    }

    /// Lets others go on. The moment is what is random; nothing is waited for.
    fn pause(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(self.below(millis)));
    }
}

/// What is asked for: a format and a title.
type Key = (String, String);

fn key_of(number: u64) -> Key {
    // Good books are the most, and every format has titles of every rest.
    let kinds = FORMATS.len() as u64 + 6;
    let format = FORMATS.get(((number / 4) % kinds) as usize).map_or("book", |format| format.0);
    (format.to_owned(), format!("title {number}"))
}

fn number_of(title: &str) -> u64 {
    title.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

fn queue_of(format: &str) -> &'static str {
    FORMATS.iter().find(|known| known.0 == format).map_or("default", |format| format.1)
}

/// What a whole file of a title holds: a document that the check of a PDF takes, and no half of it.
fn whole(title: &str) -> String {
    format!("%PDF-1.4\nxref\n{title}\n{:20000}\nstartxref\n9\n%%EOF\n", "")
}

/// Ends every session of the program.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE application_name = 'export-queue' AND datname = current_database()";

const SCRIPT: &str = r#"#!/bin/bash
kind=$1 output=$2 title=$3
half() { printf '%%PDF-1.4\nxref\n%s\n%10000s' "$title" '' >"$output" || exit 1; }
rest() { printf '%10000s\nstartxref\n9\n%%%%EOF\n' '' >>"$output" || exit 1; }
nap() { sleep 0.$((RANDOM % 4))$((RANDOM % 10)); }
half
"#;

/// The machines of a storm, the first of which has the disk of the cache and everything that exporters write.
fn machines(over: Ground) -> (Disk, Vec<Queue>) {
    let queue = match over {
        Ground::One | Ground::Steered => Queue::new(),
        #[cfg(feature = "postgres")]
        Ground::Shared => behind_a_pooler(),
    };
    let disk = Disk::mount(queue.path("cache"), DISK);
    let scratch = queue.path("").display().to_string();
    let mut cases = format!("{SCRIPT}case $kind in\n");
    let given = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    let database = given.lines().find(|line| line.starts_with("database")).unwrap_or_default();
    let mut config = format!(
        "{database}\nstate_dir = \"state\"\n[cache]\ndir = \"cache\"\nmax_age = \"{}s\"\nserve_grace = \"{}s\"\n\
         [defaults]\nformat = \"book\"\n[limits]\ntimeout = \"4s\"\nkill_grace = \"1s\"\nmax_log = \"100kB\"\n\
         [failures]\nhold = \"1s\"\n",
        MAX_AGE.as_secs(),
        GRACE.as_secs(),
    );
    for (name, slots, bound) in over.queues() {
        write!(config, "[queue.{name}]\nslots = {slots}\nmax_running = {bound}\nmin_free_disk = 0\n")
            .expect("a string");
    }
    let script = queue.path("storm.sh").display().to_string();
    for (name, lane, keys, body, _) in FORMATS {
        writeln!(cases, "{name}) {body} ;;").expect("a string");
        let input = if keys.contains("base") { ", \"{input}\"" } else { "" };
        write!(
            config,
            "[format.{name}]\nextension = \"pdf\"\nqueue = \"{lane}\"\n{keys}\nenv = {{ SCRATCH = \"{scratch}\", NODE = \"0\" }}\n\
             command = [\"{script}\", \"{name}\", \"{{output}}\", \"{{title}}\"{input}]\n"
        )
        .expect("a string");
    }
    if over.is_shared() {
        write!(config, "[node]\nlease = \"{}s\"\n", LEASE.as_secs()).expect("a string");
    }
    if over == Ground::Steered {
        config.push_str(&steering(&queue));
        config = config.replace("[cache]\n", "[cache]\nmax_bytes = \"150kB\"\nttl_from = \"accessed\"\n");
    }
    cases.push_str("esac\n");
    fs::write(&script, cases).expect("the script can be written");
    make_executable(Path::new(&script));
    queue.configure(&config);
    let mut machines = others(&queue, over);
    machines.insert(0, queue);
    for machine in &machines {
        // For ticks whose clock is far ahead: they end who is silent and start nothing with that clock.
        let config = fs::read_to_string(machine.path("config.toml")).expect("a configuration");
        let late = config.replace("min_free_disk = 0", "min_free_disk = \"1000000 TB\"");
        fs::write(machine.path("late.toml"), late).expect("the configuration can be written");
        machine.run(["init", "--quiet"]).code(0);
    }
    (disk, machines)
}

/// Further machines beside the first.
#[cfg(feature = "postgres")]
fn others(first: &Queue, over: Ground) -> Vec<Queue> {
    let beside = |number: usize| {
        let other = Queue::beside(first);
        other.reconfigure("NODE = \"0\"", &format!("NODE = \"{number}\""));
        other
    };
    if over.is_shared() { vec![beside(1), beside(2)] } else { Vec::new() }
}

#[cfg(not(feature = "postgres"))]
fn others(_first: &Queue, _over: Ground) -> Vec<Queue> {
    Vec::new()
}

/// A queue on a server of its own, through PgBouncer with fewer sessions than there are callers.
#[cfg(feature = "postgres")]
fn behind_a_pooler() -> Queue {
    let server = Server::own(&[]);
    let pooler = Box::leak(Box::new(server.pooler(8)));
    let queue = Queue::on(server, "");
    let direct = format!("?host={}", server.dir().display());
    queue.reconfigure(&direct, &format!("?host={}&port=6432", pooler.dir().display()));
    queue
}

/// What tells of each delivery, and sometimes fails or hangs.
const TOLD: &str = r#"#!/bin/bash
case $((RANDOM % 20)) in
  0) sleep 600 ;;
  1 | 2) exit 1 ;;
esac
echo "$EXPORT_QUEUE_DELIVERY" >>"$1"
"#;

/// Everything that people can steer with, switched on.
fn steering(queue: &Queue) -> String {
    let (script, told) = (queue.path("told.sh"), queue.path("TOLD"));
    fs::write(&script, TOLD).expect("the script can be written");
    make_executable(&script);
    format!(
        "[bypass]\nmax_pages = 30\nqueue = \"wide\"\n[[notify]]\non = [\"ready\", \"failed\"]\ntimeout = \"1s\"\n\
         command = [\"{}\", \"{}\"]\n",
        script.display(),
        told.display()
    )
}

/// A path that was handed out: whose it is, and until when it must open.
struct Promise {
    key: Key,
    until: Duration,
}

struct Storm {
    /// Goes before the queue, in whose directory it is mounted.
    _disk: Disk,
    machines: Vec<Queue>,
    /// The number of the machine that is without power, if one is.
    dark: AtomicUsize,
    /// Whose turn it is to be called.
    turn: AtomicUsize,
    start: Instant,
    what: Ground,
    over: AtomicBool,
    /// The killer's own end comes after all others'.
    calm: AtomicBool,
    samples: AtomicUsize,
    /// What happened, to whom.
    story: Mutex<Vec<(Duration, String, String)>>,
    violations: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, u64>>,
    promises: Mutex<BTreeMap<PathBuf, Promise>>,
    /// When a wish that nobody takes back was made, and when its acceptance was told.
    accepted: Mutex<BTreeMap<Key, (Duration, Duration)>>,
    /// Who was hit: processes, and the titles whose exporters were.
    hit: Mutex<(BTreeSet<i32>, BTreeSet<String>)>,
    /// Calls of front ends that go on.
    calls: Mutex<BTreeMap<i32, (Instant, String)>>,
    slowest: Mutex<Duration>,
    /// Decides which calls are ended on their way: they are too short for the killer to meet many.
    doom: Mutex<Chance>,
}

impl Storm {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// The machine that everybody's files are on, and everybody's rows.
    fn first(&self) -> &Queue {
        &self.machines[0]
    }

    fn is_steered(&self) -> bool {
        self.what == Ground::Steered
    }

    /// A machine that has power; each in its turn.
    fn machine(&self) -> &Queue {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.machines.len();
        let is_dark = turn == self.dark.load(Ordering::Relaxed);
        &self.machines[if is_dark { (turn + 1) % self.machines.len() } else { turn }]
    }

    /// All processes of all machines, each once.
    fn processes(&self) -> Vec<Process> {
        let all = self.machines.iter().flat_map(Queue::processes);
        let by_pid: BTreeMap<i32, Process> = all.map(|process| (process.pid, process)).collect();
        by_pid.into_values().collect()
    }

    /// The number of the machine that a process runs on.
    fn machine_of(&self, process: &Process) -> usize {
        let own = |machine: &Queue| process.command.contains(&*machine.path("config.toml").to_string_lossy());
        variable(process, "NODE")
            .and_then(|number| number.parse().ok())
            .or_else(|| self.machines.iter().position(own))
            .unwrap_or_default()
    }

    fn count(&self, what: impl Into<String>) {
        *self.counts.lock().expect("counts").entry(what.into()).or_default() += 1;
    }

    fn tell(&self, whose: &str, what: impl Into<String>) {
        self.story.lock().expect("the story").push((self.start.elapsed(), whose.to_owned(), what.into()));
    }

    /// Something is not as it must be: the storm is over.
    fn violation(&self, whose: &str, what: &str) {
        self.tell(whose, format!("VIOLATION: {what}"));
        self.violations.lock().expect("violations").push(format!("{whose}: {what}"));
        self.over.store(true, Ordering::Relaxed);
    }

    /// The last events of whoever a violation is about, and the last of all.
    fn report(&self) -> String {
        let story = self.story.lock().expect("the story");
        let violations = self.violations.lock().expect("violations");
        let mut lines: Vec<String> = violations.iter().take(5).cloned().collect();
        let tell =
            |event: &&(Duration, String, String)| format!("  {:9.3} {}: {}", event.0.as_secs_f64(), event.1, event.2);
        for violation in violations.iter().take(3) {
            let about = violation.split(':').next().unwrap_or_default();
            let own: Vec<_> =
                story.iter().filter(|event| !about.is_empty() && event.1 == about).map(|e| tell(&e)).collect();
            lines.push(format!("the story of {about}:"));
            lines.extend(own.iter().rev().take(25).rev().cloned());
        }
        lines.push("the last of all:".to_owned());
        lines.extend(story.iter().rev().take(25).rev().map(|event| tell(&event)));
        lines.join("\n")
    }

    /// Calls the program; its exit code (`None`: ended by a signal), what it printed, and whether the killer had hit it.
    fn call(&self, role: &str, whose: &str, mut command: Command) -> (Option<i32>, String, bool) {
        if let Some(delays) = self.delays() {
            command.env("EXPORT_QUEUE_FAULT", delays);
        }
        let start = now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program can be started");
        let pid = child.id().cast_signed();
        let is_front = matches!(role, "request" | "status");
        if is_front {
            self.calls.lock().expect("calls").insert(pid, (start, format!("{role} of {whose}")));
        }
        if !matches!(role, "dispatch" | "late") {
            self.doom(pid, whose, role);
        }
        let output = child.wait_with_output().expect("its output");
        self.calls.lock().expect("calls").remove(&pid);
        // Its number may be another's from now on.
        let was_hit = self.hit.lock().expect("hits").0.remove(&pid);
        let code = output.status.code();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let how = code.map_or_else(|| format!("signal {:?}", output.status.signal()), |code| code.to_string());
        self.count(format!("call {role}"));
        self.count(format!("end {role} {}", if was_hit { "(hit)" } else { &how }));
        let took = start.elapsed();
        self.tell(whose, format!("{role} [{pid}] {how} in {took:.1?} {}", err.lines().next().unwrap_or_default()));
        if code.is_some() && !was_hit {
            let usual: &[i32] = match role {
                "request" | "status" | "retry" => &[0, 3, 4, 5, 6, 75],
                "dispatch" | "sweep" | "late" => &[0, 75],
                _ => &[0, 3, 4, 5, 6, 75, 77],
            };
            if !usual.contains(&code.unwrap_or_default()) {
                self.violation(whose, &format!("{role} ended with {how}: {err}"));
            }
            if is_front {
                let mut slowest = self.slowest.lock().expect("the slowest");
                *slowest = took.max(*slowest);
            }
        }
        if matches!(code, Some(101 | 134)) || err.contains("panicked") {
            self.violation(whose, &format!("{role} panicked: {err}"));
        }
        if code.is_none() && is_front && !was_hit {
            self.violation(whose, &format!("{role} was ended by a signal that nobody sent"));
        }
        let first = err.lines().next().unwrap_or_default();
        if !first.is_empty() {
            let plain: String = first.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(140).collect();
            let plain = self.machines.iter().fold(plain, |plain, machine| {
                let path: String = machine
                    .path("")
                    .to_string_lossy()
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '#' } else { c })
                    .collect();
                plain.replace(&path, "")
            });
            self.count(format!("said {role}: {plain}"));
        }
        (code, out.into_owned(), was_hit)
    }

    /// Every third call, and the workers that it starts, dawdles at two of the named moments, so that signals meet it there.
    fn delays(&self) -> Option<String> {
        let mut chance = self.doom.lock().expect("chance");
        let mut one = || {
            let moment = chance.pick(MOMENTS).copied().unwrap_or_default();
            format!("{moment}=delay:{}", chance.below(500))
        };
        let delays = format!("{};{}", one(), one());
        (self.goes_on() && chance.below(3) == 0).then_some(delays)
    }

    /// Ends one call in ten of the short ones somewhere on its way.
    fn doom(&self, pid: i32, whose: &str, role: &str) {
        let (is_doomed, (name, signal), moment) = {
            let mut chance = self.doom.lock().expect("chance");
            let signal = if chance.below(4) == 0 { ("TERM", Signal::TERM) } else { ("KILL", Signal::KILL) };
            (self.goes_on() && chance.below(10) == 0, signal, chance.below(40_000))
        };
        if is_doomed {
            self.hit.lock().expect("hits").0.insert(pid);
            std::thread::sleep(Duration::from_micros(moment));
            // Nobody has waited for it yet: its number is its own, dead or alive.
            let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
            if rustix::process::kill_process(pid, signal).is_ok() {
                self.count(format!("hit call by {name}"));
                self.tell(whose, format!("{name} to {role} [{}]", pid.as_raw_nonzero()));
            }
        }
    }

    fn about(&self, role: &str, number: u64, more: &[&str]) -> (Option<i32>, Option<Value>, bool) {
        let (format, title) = key_of(number);
        let mut args = vec!["--json", role, "--format", &format];
        args.extend(more);
        args.extend(["--", &title]);
        let (code, out, was_hit) = self.call(role, &title, self.machine().command(args));
        let status = serde_json::from_str(out.lines().next().unwrap_or_default()).ok();
        (code, status, was_hit)
    }

    /// A front end: asks for titles and polls them. Those of its own rest it knows to be its own: what was accepted there
    /// must come to an end.
    fn front_end(&self, mut chance: Chance, rest: u64) {
        while self.goes_on() {
            let own = rest < OPERATED && chance.below(4) > 0;
            let number = if own { chance.below(TITLES / 4) * 4 + rest } else { chance.below(TITLES) };
            let key = key_of(number);
            let asks = chance.below(3) == 0;
            let more: &[&str] = match chance.below(8) {
                0 => &["--refresh"],
                1 | 2 => &["--retry"],
                _ => &[],
            };
            let (client, pages) = (format!("c{}", chance.below(3)), chance.below(60).to_string());
            let steered = [more, &["--client", &client, "--pages", &pages]].concat();
            let more = if self.is_steered() { &steered } else { more };
            let before = since_epoch();
            let (code, status, _) =
                if asks { self.about("request", number, more) } else { self.about("status", number, &[]) };
            let Some(status) = status else { continue };
            let is_kept = number % 4 != OPERATED;
            if asks && matches!(code, Some(3 | 4)) && is_kept {
                self.accepted.lock().expect("wishes").entry(key.clone()).or_insert((before, since_epoch()));
            }
            match status["state"].as_str().unwrap_or_default() {
                "ready" => self.note_path(&key, &status, before),
                "absent" if is_kept => self.check_absent(&key, before),
                _ => {}
            }
            chance.pause(250);
        }
    }

    fn note_path(&self, key: &Key, status: &Value, asked: Duration) {
        self.accepted.lock().expect("wishes").remove(key);
        let path = PathBuf::from(text(&status["path"]));
        let expires: DateTime<Utc> = text(&status["expires_at"]).parse().expect("a time");
        // Where room may have to be made, a path is good for the grace and no more.
        let until = if self.is_steered() {
            asked + GRACE
        } else {
            Duration::from_millis(expires.timestamp_millis().unsigned_abs()) + GRACE
        };
        let mut promises = self.promises.lock().expect("promises");
        let promise = promises.entry(path).or_insert_with(|| Promise { key: key.clone(), until });
        promise.until = promise.until.max(until);
    }

    /// "Absent" is true only of what was ready since it was accepted, and has expired.
    fn check_absent(&self, key: &Key, asked: Duration) {
        let accepted = self.accepted.lock().expect("wishes").get(key).copied();
        // Whoever asked before the acceptance was told may have been too early.
        let Some((accepted, _)) = accepted.filter(|(_, told)| *told < asked) else { return };
        if self.was_ready_since(key, accepted) {
            self.accepted.lock().expect("wishes").remove(key);
        } else {
            self.violation(&key.1, &format!("accepted at {accepted:?}, absent now, and never ready since"));
        }
    }

    fn was_ready_since(&self, (format, title): &Key, since: Duration) -> bool {
        let earliest = (since.saturating_sub(MAX_AGE.saturating_sub(GRACE))).as_millis();
        let sql = format!(
            "SELECT token FROM runs WHERE title = '{title}' AND format = '{format}'
             AND (published_at >= {earliest} OR accessed_at >= {earliest}) LIMIT 1"
        );
        !self.first().sql(&sql).is_empty()
    }

    fn dispatches(&self, mut chance: Chance, args: &[&str], pause: u64) {
        for turn in chance.below(3) as usize.. {
            if !self.goes_on() {
                break;
            }
            // Each machine in its turn: whoever is cron comes to all of them.
            let number = turn % self.machines.len();
            if number != self.dark.load(Ordering::Relaxed) {
                self.call("dispatch", "dispatch", self.machines[number].command(args));
            }
            chance.pause(pause);
        }
    }

    fn sweeps(&self, mut chance: Chance) {
        while self.goes_on() {
            self.call("sweep", "sweep", self.machine().command(["--quiet", "sweep"]));
            chance.pause(1000);
        }
    }

    fn operators(&self, mut chance: Chance) {
        while self.goes_on() {
            let operated = chance.below(TITLES / 4) * 4 + OPERATED;
            if self.is_steered() && chance.below(4) == 0 {
                let queue = QUEUES[chance.below(2) as usize].0;
                self.call("pause", "pause", self.first().command(["pause", queue, "--message", "a moment"]));
                chance.pause(600);
                self.call("resume", "resume", self.first().command(["resume"]));
            }
            match chance.below(6) {
                0 | 1 => drop(self.about("cancel", operated, if chance.below(2) == 0 { &["--force"] } else { &[] })),
                2 => drop(self.about("dismiss", operated, &[])),
                3 => drop(self.about("retry", chance.below(TITLES), &[])),
                4 => drop(self.about("explain", chance.below(TITLES), &[])),
                _ => drop(self.call("list", "list", self.machine().command(["--json", "list"]))),
            }
            chance.pause(400);
        }
    }

    /// Hits one process at random; what was stopped goes on, or is ended, a moment later.
    fn killer(&self, mut chance: Chance) {
        let mut later: Vec<(Instant, Process, Signal)> = Vec::new();
        let mut frozen: Vec<(Instant, Process)> = Vec::new();
        while !self.calm.load(Ordering::Relaxed) {
            chance.pause(300);
            let due = |at: &Instant| *at <= now() || self.calm.load(Ordering::Relaxed);
            for (_, process, signal) in later.extract_if(.., |(at, _, _)| due(at)) {
                send(&process, signal);
            }
            frozen.retain(|(_, process)| process.lives());
            if let Some((since, process)) = frozen.first()
                && since.elapsed() > Duration::from_secs(4)
            {
                self.late_tick(self.machine_of(process));
            }
            if !self.goes_on() {
                continue;
            }
            if self.what.is_shared() && chance.below(30) == 0 {
                let ended = self.first().sql(END_SESSIONS).len();
                self.tell("", format!("the server ends {ended} sessions"));
                self.count("hit sessions by the server");
            }
            let all = self.processes();
            let role = chance.below(100);
            let of_role = |process: &&Process| match role {
                0..35 => is_worker(process),
                35..65 => run_of(process).is_some(),
                65..80 => process.command.contains("\0dispatch"),
                _ => process.command.contains("export-queue\0") && !is_worker(process),
            };
            let candidates: Vec<&Process> = all.iter().filter(of_role).collect();
            let Some(&victim) = chance.pick(&candidates) else { continue };
            let (is_exporter, is_worker) = (run_of(victim).is_some(), is_worker(victim));
            let whom = if is_exporter {
                "exporter"
            } else if is_worker {
                "worker"
            } else {
                "call"
            };
            let title = title_of(victim);
            {
                let mut hit = self.hit.lock().expect("hits");
                hit.0.insert(victim.pid);
                hit.1.extend(title.clone().filter(|_| is_exporter));
            }
            let (what, signal) = match chance.below(100) {
                0..40 => ("KILL", Signal::KILL),
                40..65 => ("TERM", Signal::TERM),
                65..88 => {
                    let at = now() + Duration::from_millis(chance.below(800));
                    later.push((at, victim.clone(), Signal::CONT));
                    ("STOP and CONT", Signal::STOP)
                }
                _ if is_exporter => ("STOP", Signal::STOP),
                _ if is_worker && frozen.is_empty() => {
                    frozen.push((now(), victim.clone()));
                    ("STOP", Signal::STOP)
                }
                _ => {
                    // Nobody but whoever started it ends a call that holds nothing.
                    later.push((now() + Duration::from_secs(2), victim.clone(), Signal::KILL));
                    ("STOP and KILL", Signal::STOP)
                }
            };
            if send(victim, signal) {
                self.count(format!("hit {whom} by {what}"));
                let whose = title.unwrap_or_else(|| whom.to_owned());
                self.tell(&whose, format!("{what} to {whom} [{}] {}", victim.pid, victim.command.replace('\0', " ")));
            }
        }
    }

    /// A tick that is so late that every silence is long; of the others that hold a lock it ends only who is as silent.
    fn late_tick(&self, machine: usize) {
        let mut command = Command::new(crate::harness::PROGRAM);
        command
            .arg("--config")
            .arg(self.machines[machine].path("late.toml"))
            .arg("dispatch")
            .stdin(Stdio::null())
            .current_dir("/");
        command.env("EXPORT_QUEUE_TEST_MONOTONIC", "100");
        self.call("late", "late", command);
    }

    fn checker(&self) {
        let mut seen = BTreeSet::new();
        while !self.calm.load(Ordering::Relaxed) {
            let start = now();
            let number = self.samples.fetch_add(1, Ordering::Relaxed);
            self.check_exporters();
            self.check_promises();
            self.check_files(&mut seen);
            if number.is_multiple_of(50) && !self.what.is_shared() {
                let sound = self.first().sql("PRAGMA integrity_check");
                if sound != ["ok"] {
                    self.violation("", &format!("the database: {sound:?}"));
                }
            }
            let hit = self.hit.lock().expect("hits").0.clone();
            for (pid, (since, what)) in &*self.calls.lock().expect("calls") {
                if since.elapsed() > GENEROUS && !hit.contains(pid) {
                    self.violation("", &format!("{what} takes {:?}", since.elapsed()));
                    crate::harness::kill(*pid, "KILL");
                }
            }
            std::thread::sleep(Duration::from_millis(100).saturating_sub(start.elapsed()));
        }
    }

    /// Counts exporters by their markers; each was seen before the first is looked at again.
    fn check_exporters(&self) {
        let exporters = self.first().exporters();
        let rows = self.first().sql("SELECT token, queue FROM jobs WHERE token IS NOT NULL");
        let rows: BTreeMap<&str, &str> = rows.iter().filter_map(|row| row.split_once('|')).collect();
        let mut runs: BTreeMap<String, (Key, usize)> = BTreeMap::new();
        for process in &exporters {
            let (Some(run), Some(title)) = (run_of(process), title_of(process)) else { continue };
            let Some(format) = variable(process, "EXPORT_QUEUE_FORMAT") else { continue };
            // Whoever tells others is no exporter.
            if variable(process, "EXPORT_QUEUE_DELIVERY").is_some() {
                continue;
            }
            let still = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
            if String::from_utf8_lossy(&still).contains(&run) {
                runs.insert(run, ((format.to_owned(), title), self.machine_of(process)));
            }
        }
        for (queue, slots, bound) in self.what.queues() {
            let lane = |run: &str, format: &str| rows.get(run).copied().unwrap_or_else(|| queue_of(format)).to_owned();
            let live: Vec<_> = runs.iter().filter(|(run, (key, _))| lane(run, &key.0) == *queue).collect();
            let on = |machine| live.iter().filter(|(_, (_, its))| *its == machine).count();
            let is_over = (0..self.machines.len()).any(|machine| on(machine) > *slots);
            if is_over || (*bound > 0 && live.len() > *bound) {
                let title = live.first().map(|(_, (key, _))| key.1.clone()).unwrap_or_default();
                self.violation(&title, &format!("{} exporters in queue {queue}: {live:?}", live.len()));
            }
        }
        let mut keys: BTreeMap<&Key, &String> = BTreeMap::new();
        for (run, (key, _)) in &runs {
            if let Some(other) = keys.insert(key, run) {
                self.violation(&key.1, &format!("two exporters at once, runs {other} and {run}"));
            }
            if !rows.contains_key(run.as_str()) {
                self.violation(&key.1, &format!("an exporter lives whose run {run} no row names"));
            }
        }
    }

    fn check_promises(&self) {
        let mut promises = self.promises.lock().expect("promises");
        promises.retain(|_, promise| since_epoch() < promise.until);
        for (path, promise) in &*promises {
            if let Err(error) = fs::File::open(path)
                && since_epoch() < promise.until
            {
                self.violation(&promise.key.1, &format!("a path is promised until {:?}: {error}", promise.until));
            }
        }
    }

    /// Every published file is the whole of one title, and of the title that its path was handed out for.
    fn check_files(&self, seen: &mut BTreeSet<(u64, i64, i64)>) {
        for path in self.first().published() {
            let Ok(mut file) = fs::File::open(&path) else { continue };
            let meta = file.metadata().expect("an open file");
            if !seen.insert((meta.ino(), meta.mtime(), meta.mtime_nsec())) {
                continue;
            }
            let mut content = String::new();
            file.read_to_string(&mut content).expect("an open file");
            let title = content.lines().nth(2).unwrap_or_default().to_owned();
            let promised = self.promises.lock().expect("promises").get(&path).map(|promise| promise.key.1.clone());
            let slug = format!("/title_{}-", number_of(&title));
            let is_its_own =
                path.to_string_lossy().to_lowercase().replace(['-', ' '], "_").contains(&slug.replace('-', "_"));
            if content != whole(&title) || promised.is_some_and(|promised| promised != title) || !is_its_own {
                self.violation(&title, &format!("{} is not whole: {} bytes", path.display(), content.len()));
            }
        }
    }

    /// After the storm: everything settles without a person.
    fn settle(&self) {
        let frozen = || -> Vec<Process> {
            self.processes().into_iter().filter(|worker| is_worker(worker) && is_stopped(worker.pid)).collect()
        };
        for _ in 0..4 {
            let machines: BTreeSet<usize> = frozen().iter().map(|worker| self.machine_of(worker)).collect();
            for machine in machines {
                self.late_tick(machine);
            }
        }
        for worker in frozen() {
            // Whoever is frozen and holds nothing harms nobody; whoever holds a slot must have been ended.
            let fds = fs::read_dir(format!("/proc/{}/fd", worker.pid)).into_iter().flatten().flatten();
            let slots = self.machines[self.machine_of(&worker)].path("state/slots");
            if fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target.starts_with(&slots)) {
                self.violation("worker", &format!("[{}] is frozen with a slot, and late ticks let it be", worker.pid));
            }
            self.count("frozen without a slot");
            send(&worker, Signal::CONT);
        }
        eventually("every job has ended", || {
            self.call("resume", "resume", self.first().command(["resume"]));
            for machine in &self.machines {
                self.call("dispatch", "dispatch", machine.command(["dispatch", "--wait"]));
            }
            self.first().sql("SELECT id FROM jobs WHERE state < 2").is_empty().then_some(())
        });
        eventually("no process is left", || self.processes().is_empty().then_some(()));
    }

    /// Each accepted title is ready, or was and has expired, or has failed with a reason that is true.
    fn check_ends(&self) {
        let rows =
            self.first().sql("SELECT title, format, reason, replace(detail, '\n', ' ') FROM jobs WHERE state >= 2");
        let mut failed = BTreeSet::new();
        let hit = self.hit.lock().expect("hits").1.clone();
        for row in &rows {
            let fields: Vec<&str> = row.splitn(4, '|').collect();
            let &[title, format, reason, detail] = fields.as_slice() else { panic!("{row}") };
            failed.insert((format.to_owned(), title.to_owned()));
            self.count(format!("failed at the end: {reason}"));
            let own = FORMATS.iter().find(|known| known.0 == format).and_then(|format| format.4);
            let by_signal = |reason: &str| {
                ["killed_by_signal", "exit_nonzero", "timed_out", "output_invalid"].contains(&reason)
                    && hit.contains(title)
            };
            let of_worker =
                |text: &str| text.contains("its worker died 4 times") || text.contains("was told to stop 21 times");
            let is_true = match reason {
                _ if own == Some(reason) || by_signal(reason) => true,
                "interrupted" => of_worker(detail),
                "cancelled" => number_of(title) % 4 == OPERATED,
                // Whoever writes while a filler is at work meets the full disk too.
                "no_space" => true,
                "base_failed" => {
                    format == "copy" && (of_worker(detail) || hit.contains(title) || detail.contains("no_space"))
                }
                // An exporter that was frozen is over its time.
                _ => false,
            };
            if !is_true {
                self.violation(title, &format!("{format} failed, and that is not why: {reason}: {detail}"));
            }
        }
        for (key, (accepted, _)) in &*self.accepted.lock().expect("wishes") {
            if !failed.contains(key) && !self.was_ready_since(key, *accepted) {
                self.violation(&key.1, &format!("{} accepted at {accepted:?}, and lost", key.0));
            }
        }
        self.check_told();
        for machine in &self.machines {
            let log = fs::read_to_string(machine.path("state/logs/worker.txt")).unwrap_or_default();
            if let Some(panic) = log.lines().find(|line| line.contains("panicked")) {
                self.violation("worker", panic);
            }
        }
        for line in self.first().sql("SELECT outcome, coalesce(reason, ''), count(*) FROM runs GROUP BY 1, 2") {
            let (what, count) = line.rsplit_once('|').unwrap_or_default();
            let count = count.parse().unwrap_or(0);
            *self.counts.lock().expect("counts").entry(format!("run {what}")).or_default() += count;
        }
    }
}

impl Storm {
    /// Every end of a job was told at least once, or is still to be.
    fn check_told(&self) {
        if !self.is_steered() {
            return;
        }
        let mut known: BTreeSet<String> = self.first().scratch("TOLD").into_iter().collect();
        let told = known.len() as u64;
        known.extend(self.first().sql("SELECT id FROM deliveries"));
        let last: u64 =
            self.first().sql("SELECT seq FROM sqlite_sequence WHERE name = 'deliveries'")[0].parse().unwrap_or(0);
        let forgotten: Vec<u64> = (1..=last).filter(|id| !known.contains(&id.to_string())).collect();
        if !forgotten.is_empty() {
            self.violation("", &format!("neither told nor to be told: {forgotten:?}"));
        }
        let ends = self
            .first()
            .sql("SELECT count(*) FROM runs WHERE outcome IN ('ready', 'failed_timeout', 'failed_unknown')");
        let ends: u64 = ends[0].parse().unwrap_or(0);
        if last < ends {
            self.violation("", &format!("{ends} jobs ended, and {last} ends were to be told"));
        }
        *self.counts.lock().expect("counts").entry("told".to_owned()).or_default() += told;
    }
}

impl Storm {
    /// Now and then a machine loses its power, for longer than a lease; then it comes back.
    fn blackouts(&self, mut chance: Chance) {
        while self.goes_on() {
            self.wait_for(Duration::from_millis(chance.below(12_000)));
            let machine = chance.below(self.machines.len() as u64) as usize;
            self.dark.store(machine, Ordering::Relaxed);
            self.tell("", format!("machine {machine} has no power"));
            let begun = now();
            while self.goes_on() && begun.elapsed() < LEASE + Duration::from_secs(3) {
                self.power_off(machine);
                chance.pause(100);
            }
            self.dark.store(usize::MAX, Ordering::Relaxed);
            self.tell("", format!("machine {machine} has power"));
            self.count("hit machine by a power cut");
        }
    }

    fn wait_for(&self, time: Duration) {
        let begun = now();
        while self.goes_on() && begun.elapsed() < time {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills everything that runs on a machine, workers before what they look after.
    fn power_off(&self, machine: usize) {
        let mut all: Vec<Process> =
            self.processes().into_iter().filter(|process| self.machine_of(process) == machine).collect();
        all.sort_by_key(|process| run_of(process).is_some());
        for process in all {
            let mut hit = self.hit.lock().expect("hits");
            hit.0.insert(process.pid);
            hit.1.extend(title_of(&process));
            send(&process, Signal::KILL);
        }
    }
}

fn variable<'p>(process: &'p Process, name: &str) -> Option<&'p str> {
    process.environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
}

fn run_of(process: &Process) -> Option<String> {
    variable(process, "EXPORT_QUEUE_RUN").map(str::to_owned)
}

fn title_of(process: &Process) -> Option<String> {
    variable(process, "EXPORT_QUEUE_TITLE").map(str::to_owned)
}

fn is_worker(process: &Process) -> bool {
    process.command.contains("\0work\0") && run_of(process).is_none()
}

fn is_stopped(pid: i32) -> bool {
    process::stat(pid).is_some_and(|stat| stat.state == 'T')
}

/// Signals a process if it still is the one that was seen: one that came later has another command line.
fn send(process: &Process, signal: Signal) -> bool {
    let Some(stat) = process::stat(process.pid) else { return false };
    let command = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    String::from_utf8_lossy(&command) == process.command && process::signal(stat.identity, signal)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn in_a_storm_of_signals_every_promise_holds() {
    storm(Ground::One, setting("EXPORT_QUEUE_STORM_SECONDS", SECONDS));
}

#[test]
fn in_a_storm_every_promise_holds_with_everything_switched_on() {
    storm(Ground::Steered, setting("EXPORT_QUEUE_STORM_SECONDS", SECONDS / 2));
}

#[cfg(feature = "postgres")]
#[test]
fn in_a_storm_over_three_machines_every_promise_holds() {
    storm(Ground::Shared, setting("EXPORT_QUEUE_STORM_SHARED_SECONDS", SECONDS / 2));
}

fn storm(what: Ground, seconds: u64) {
    let seed = setting("EXPORT_QUEUE_TEST_SEED", since_epoch().as_nanos() as u64 | 1);
    println!("{what:?}: EXPORT_QUEUE_TEST_SEED={seed}, {seconds} seconds");
    let (disk, machines) = machines(what);
    let storm = Storm {
        _disk: disk,
        machines,
        dark: AtomicUsize::new(usize::MAX),
        turn: AtomicUsize::new(0),
        what,
        start: now(),
        over: AtomicBool::new(false),
        calm: AtomicBool::new(false),
        samples: AtomicUsize::new(0),
        story: Mutex::default(),
        violations: Mutex::default(),
        counts: Mutex::default(),
        promises: Mutex::default(),
        accepted: Mutex::default(),
        hit: Mutex::default(),
        calls: Mutex::default(),
        slowest: Mutex::default(),
        doom: Mutex::new(Chance::of(seed, 2)),
    };
    let chance = |number| Chance::of(seed, number);
    std::thread::scope(|scope| {
        let storm = &storm;
        let killer = scope.spawn(move || storm.killer(chance(1)));
        let checker = scope.spawn(move || storm.checker());
        let mut others = Vec::new();
        for rest in 0..4 {
            others.push(scope.spawn(move || storm.front_end(chance(10 + rest), rest)));
        }
        others.push(scope.spawn(move || storm.dispatches(chance(20), &["dispatch"], 600)));
        others.push(scope.spawn(move || storm.dispatches(chance(21), &["dispatch", "--for", "2s"], 200)));
        others.push(scope.spawn(move || storm.dispatches(chance(22), &["dispatch", "--wait"], 600)));
        others.push(scope.spawn(move || storm.sweeps(chance(30))));
        others.push(scope.spawn(move || storm.operators(chance(31))));
        if what.is_shared() {
            others.push(scope.spawn(move || storm.blackouts(chance(32))));
        }
        while storm.goes_on() && storm.start.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(50));
        }
        storm.over.store(true, Ordering::Relaxed);
        // Stopped calls are ended by the killer.
        let ended: Vec<_> = others.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let is_well = ended.iter().all(Result::is_ok) && storm.violations.lock().expect("violations").is_empty();
        if is_well {
            storm.settle();
        }
        storm.calm.store(true, Ordering::Relaxed);
        killer.join().expect("the killer ends well");
        checker.join().expect("the checker ends well");
        assert!(
            ended.iter().all(Result::is_ok),
            "somebody panicked; EXPORT_QUEUE_TEST_SEED={seed}\n{}",
            storm.report()
        );
        if is_well {
            storm.check_ends();
        }
    });
    let counts = storm.counts.lock().expect("counts").clone();
    let sum = |kind: &str| counts.iter().filter(|(what, _)| what.starts_with(kind)).map(|(_, n)| n).sum::<u64>();
    println!(
        "{:.0?}: {} calls, {} hits, {} exports, {} ready, {} samples, slowest answer {:?}, {} violations",
        storm.start.elapsed(),
        sum("call "),
        sum("hit "),
        sum("run "),
        sum("run ready"),
        storm.samples.load(Ordering::Relaxed),
        storm.slowest.lock().expect("the slowest"),
        storm.violations.lock().expect("violations").len(),
    );
    for (what, count) in &counts {
        println!("{count:7} {what}");
    }
    let is_green = storm.violations.lock().expect("violations").is_empty();
    assert!(is_green, "EXPORT_QUEUE_TEST_SEED={seed}\n{}", storm.report());
    storm.machines.iter().for_each(Queue::assert_quiet);
}
