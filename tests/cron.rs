//! Real cron, with the lines of `crontab.example`.
//!
//! Debian's cron runs in mount and process namespaces of its own, with a crontab, `/etc/cron.d`, `/etc/export-queue`,
//! `/usr/local/bin/export-queue` and mail program of its own; nothing of the machine is touched. Under faketime it takes a
//! second for a minute, while its jobs see the real clock. The queue belongs to `www-data`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::converters::need;
use crate::harness::{PROGRAM, Queue, eventually, make_executable, now, since_epoch};

/// What is shipped.
const SHIPPED: &str = include_str!("../crontab.example");

/// The user who owns the queue: `www-data`.
const OWNER: u32 = 33;

/// Makes the surroundings, then runs cron; its own arguments are the directory and the program.
const SURROUNDINGS: &str = r#"
D=$1 program=$2; shift 2
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t overlay -o lowerdir="$D/etc":/etc overlay /etc
mount --bind "$D/crond.d" /etc/cron.d
mount --bind "$D/crontabs" /var/spool/cron/crontabs
mount -t overlay -o lowerdir="$D/sbin":/usr/sbin overlay /usr/sbin
mount -t overlay -o lowerdir="$D/bin":/usr/local/bin overlay /usr/local/bin
mount --bind "$program" /usr/local/bin/export-queue
exec "$@" cron -f"#;

/// How cron's minutes pass.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    /// As ours do.
    Real,
    /// A second each.
    Fast,
}

/// A cron with its jobs; all of them end with it.
struct Cron {
    queue: Queue,
    child: Option<Child>,
}

impl Cron {
    /// Prepares everything but the table.
    #[track_caller]
    fn new(more: &str) -> Self {
        need(&["cron", "faketime"]);
        let queue = Queue::new();
        for dir in ["etc/export-queue", "crond.d", "crontabs", "sbin", "bin", "mail", "state", "cache"] {
            fs::create_dir_all(queue.path(dir)).expect("a directory");
        }
        for dir in ["", "state", "cache", "mail"] {
            chown(queue.path(dir), Some(OWNER), Some(OWNER)).expect("only root can run cron's tests: run as root");
        }
        make_executable(&queue.path(""));
        let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/fake");
        fs::copy(fake, queue.path("fake")).expect("a copy");
        let place = |name: &str| queue.path(name).to_str().expect("a path").to_owned();
        let config = format!("{}{more}", queue.base_config()).replace(fake, &place("fake"));
        let config = config.replace("state_dir = \"state\"", &format!("state_dir = \"{}\"", place("state")));
        let config = config.replace("dir = \"cache\"", &format!("dir = \"{}\"", place("cache")));
        queue.configure(&config);
        fs::write(queue.path("etc/export-queue/config.toml"), config).expect("the configuration");
        fs::write(queue.path("etc/crontab"), "").expect("an empty table");
        fs::write(queue.path("bin/export-queue"), "").expect("a place for the program");
        let sendmail = queue.path("sbin/sendmail");
        fs::write(&sendmail, format!("#!/bin/sh\nexec cat >\"$(mktemp {}/XXXXXX)\"\n", place("mail")))
            .expect("a script");
        make_executable(&sendmail);
        Self { queue, child: None }
    }

    /// The table of a user, as `crontab -u USER` leaves it.
    fn table_of(&self, user: &str, uid: u32, table: &str) {
        let path = self.queue.path("crontabs").join(user);
        fs::write(&path, table).expect("a table");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        let spool = fs::metadata("/var/spool/cron/crontabs").expect("cron's directory");
        chown(&path, Some(uid), Some(spool.gid())).expect("its owner");
        chown(self.queue.path("crontabs"), None, Some(spool.gid())).expect("its owner");
        fs::set_permissions(self.queue.path("crontabs"), fs::Permissions::from_mode(0o1730)).expect("its mode");
    }

    fn start(&mut self, clock: Clock) {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]);
        command.args(["sh", "-ec", SURROUNDINGS, "cron"]).arg(self.queue.path("")).arg(PROGRAM);
        if clock == Clock::Fast {
            command.args(["faketime", "-f", "+0 x60"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        self.child = Some(command.spawn().expect("unshare starts"));
    }

    /// Processes below this cron whose arguments contain a word.
    fn processes(&self, word: &str) -> BTreeSet<i32> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        let Ok(space) = fs::read_link(format!("/proc/{pid}/ns/pid_for_children")) else {
            return BTreeSet::new();
        };
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_below = |pid: &i32| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|own| own == space);
        let has_word = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.starts_with("/usr/local/bin/export-queue ") && line.contains(word)
        };
        pids.filter(is_below).filter(has_word).collect()
    }

    /// When the last whole tick was.
    fn last_tick(&self) -> Option<std::time::SystemTime> {
        fs::metadata(self.queue.path("state/tick")).and_then(|meta| meta.modified()).ok()
    }

    /// Waits until cron has started a tick once more.
    #[track_caller]
    fn next_tick(&self) {
        let before = self.last_tick();
        eventually("cron starts a tick", || (self.last_tick() > before).then_some(()));
    }

    /// What was mailed.
    fn mails(&self) -> Vec<String> {
        let files = fs::read_dir(self.queue.path("mail")).expect("a directory").flatten();
        files.map(|file| String::from_utf8_lossy(&fs::read(file.path()).expect("a mail")).into_owned()).collect()
    }

    /// Nothing was mailed, nothing runs, all is in order.
    #[track_caller]
    fn close(self) {
        eventually("the workers end", || self.processes(" work ").is_empty().then_some(()));
        assert_eq!(self.mails(), Vec::<String>::new());
        self.queue.assert_quiet();
        for file in self.queue.published().iter().chain([&self.queue.path("state/queue.db")]) {
            assert_eq!(fs::metadata(file).expect("a file").uid(), OWNER, "{}", file.display());
        }
    }
}

impl Drop for Cron {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // unshare takes all below it along.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The shipped table without what it says about itself: the lines that cron acts upon.
fn acting_lines(table: &str) -> Vec<&str> {
    table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).collect()
}

/// The second form of the shipped file, its signs of comment taken away, for another user.
fn second_form(user: &str) -> String {
    let (_, second) = SHIPPED.split_once("# ---- 2.").expect("a second form");
    let lines = second.lines().filter_map(|line| line.strip_prefix("# "));
    let lines = lines.filter(|line| line.starts_with("MAILTO=") || line.starts_with("PATH=") || line.starts_with("* "));
    let table = lines.flat_map(|line| [line, "\n"]).collect::<String>();
    assert!(table.contains(" export-queue /usr/local/bin/export-queue "), "{table}");
    table.replace("* export-queue /", &format!("* {user} /"))
}

#[test]
fn both_shipped_forms_say_the_same() {
    let first = acting_lines(SHIPPED);
    let second = second_form("USER").replace(" USER ", " ");
    assert_eq!(first, second.lines().collect::<Vec<_>>());
    assert_eq!(first.last(), Some(&"* * * * * /usr/local/bin/export-queue dispatch --for 60s"));
    assert!(SHIPPED.ends_with('\n'), "cron ignores a last line without a newline");
}

#[test]
fn a_plain_dispatch_each_minute_exports_what_is_asked_for_in_between() {
    let mut cron = Cron::new("");
    fs::write(cron.queue.path("S"), "3").expect("the seconds");
    cron.table_of("www-data", OWNER, &SHIPPED.replace(" dispatch --for 60s", " dispatch"));
    cron.queue.request("ok", "before");
    cron.start(Clock::Fast);
    cron.queue.await_state("ok", "before", "ready");
    for title in ["one", "two"] {
        cron.next_tick();
        cron.queue.request("ok", title);
        cron.queue.await_state("ok", title, "ready");
    }
    // An exporter that takes longer than a minute outlives the tick that started it, and the ticks after that.
    cron.queue.request("slow", "long");
    cron.queue.await_state("slow", "long", "started");
    cron.next_tick();
    cron.next_tick();
    eventually("the worker is there and no tick", || {
        (cron.processes(" dispatch").is_empty() && cron.processes(" work ").len() == 1).then_some(())
    });
    assert_eq!(cron.queue.state("slow", "long"), "started");
    cron.queue.await_state("slow", "long", "ready");
    let starts = cron.queue.scratch("STARTS");
    assert_eq!(starts.len(), 4, "{starts:?}");
    cron.close();
}

#[test]
fn the_shipped_line_in_cron_d_overlaps_itself_and_does_nothing_twice() {
    let mut cron = Cron::new("");
    fs::write(cron.queue.path("S"), "0.3").expect("the seconds");
    fs::write(cron.queue.path("crond.d/export-queue"), second_form("www-data")).expect("a table");
    let titles: Vec<String> = (0..12).map(|number| format!("book {number}")).collect();
    cron.start(Clock::Fast);
    let mut most = 0;
    for title in &titles {
        cron.queue.request("mark", title);
    }
    eventually("four ticks run at once and all books are made", || {
        most = most.max(cron.queue.exporters().len());
        let all_ready = titles.iter().all(|title| cron.queue.state("mark", title) == "ready");
        (all_ready && cron.processes(" dispatch --for 60s").len() >= 4).then_some(())
    });
    let starts = cron.queue.scratch("LOG").iter().filter(|line| line.starts_with("start ")).count();
    assert_eq!(starts, titles.len(), "{:?}", cron.queue.scratch("LOG"));
    assert!((1..=2).contains(&most_at_once(&cron.queue.scratch("LOG"))), "{most} exporters were seen");
    cron.close();
}

/// The most exporters that ran at the same time, by what they noted when they began and ended.
fn most_at_once(log: &[String]) -> usize {
    let mut running = 0_usize;
    let counts = log.iter().map(|line| {
        running = if line.starts_with("start ") { running + 1 } else { running - 1 };
        running
    });
    counts.max().unwrap_or(0)
}

#[test]
fn a_lasting_fault_is_mailed_once_and_in_one_line_also_from_roots_table() {
    let mut cron = Cron::new("[format.gone]\ncommand = [\"no-such-converter\", \"{output}\"]\ncheck = \"none\"\n");
    cron.table_of("root", 0, &SHIPPED.replace(" dispatch --for 60s", " dispatch"));
    cron.queue.request("gone", "A");
    cron.start(Clock::Fast);
    eventually("it is mailed", || (!cron.mails().is_empty()).then_some(()));
    for _ in 0..3 {
        cron.next_tick();
    }
    cron.queue.request("ok", "B");
    cron.queue.await_state("ok", "B", "ready");
    let mails = cron.mails();
    assert_eq!(mails.len(), 1, "{mails:?}");
    let (head, body) = mails[0].split_once("\n\n").expect("a mail");
    assert!(head.contains("To: root"), "{head}");
    assert_eq!(body, "export-queue: gone jobs wait in queue default: no-such-converter is not installed\n");
    assert_eq!(
        cron.queue.run(["--json", "status", "--format", "gone", "A"]).code(3).json()["reason"],
        "exporter_missing"
    );
    for mail in fs::read_dir(cron.queue.path("mail")).expect("a directory").flatten() {
        fs::remove_file(mail.path()).expect("a mail");
    }
    cron.close();
}

/// As [`eventually`], for what takes minutes.
#[track_caller]
fn within<T>(patience: Duration, story: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let start: Instant = now();
    loop {
        if let Some(value) = what() {
            return value;
        }
        assert!(start.elapsed() < patience, "never: {story}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_shipped_table_works_over_two_real_minutes_and_exporters_outlive_their_tick() {
    let mut cron = Cron::new("");
    cron.queue.reconfigure("timeout = \"60s\"", "timeout = \"300s\"");
    let config: PathBuf = cron.queue.path("etc/export-queue/config.toml");
    fs::copy(cron.queue.path("config.toml"), config).expect("the configuration");
    fs::write(cron.queue.path("S"), "62").expect("the seconds");
    cron.table_of("www-data", OWNER, SHIPPED);
    cron.queue.request("ok", "before");
    cron.start(Clock::Real);
    let minute = Duration::from_secs(65);
    // The least: a worker about to begin still bears its dispatcher's command line, for an instant.
    let first = within(minute, "the first minute", || cron.processes(" dispatch --for 60s").into_iter().min());
    cron.queue.await_state("ok", "before", "ready");
    cron.queue.request("slow", "long");
    let asked = now();
    cron.queue.request("ok", "between");
    cron.queue.await_state("ok", "between", "ready");
    assert!(asked.elapsed() < Duration::from_secs(10), "a poke did not wake the dispatcher");
    within(minute, "the second minute", || {
        let dispatchers = cron.processes(" dispatch --for 60s");
        (dispatchers.iter().any(|pid| *pid != first) && !dispatchers.contains(&first)).then_some(())
    });
    assert_eq!(cron.queue.state("slow", "long"), "started");
    cron.queue.request("ok", "after");
    cron.queue.await_state("ok", "after", "ready");
    within(minute, "the long one", || (cron.queue.state("slow", "long") == "ready").then_some(()));
    assert_eq!(cron.queue.scratch("STARTS").len(), 4, "{:?}", cron.queue.scratch("STARTS"));
    cron.close();
}

/// The longest time from the call of `request` to the first line of the exporter for 95 of a hundred, in seconds: cron's
/// minute, and one for the tick and what waits before.
const P95: f64 = 61.0;

/// An exporter that notes when it began, in seconds, before it does anything else.
const STAMP: &str = "#!/bin/bash\necho \"$EPOCHREALTIME $2\" >>\"$3\"; echo x >\"$1\"\n";

#[test]
#[ignore = "takes three minutes: tests/run --long"]
fn a_hundred_requests_under_a_plain_tick_start_within_a_minute() {
    let mut cron = Cron::new("");
    let place = |name: &str| cron.queue.path(name).display().to_string();
    fs::write(place("stamp"), STAMP).expect("a script");
    make_executable(&cron.queue.path("stamp"));
    let config = fs::read_to_string(place("config.toml")).expect("the configuration");
    let (stamp, began) = (place("stamp"), place("state/BEGAN"));
    let config = format!(
        "{config}[format.stamp]\nextension = \"txt\"\ncommand = [\"{stamp}\", \"{{output}}\", \"{{title}}\", \"{began}\"]\n"
    );
    fs::write(place("etc/export-queue/config.toml"), &config).expect("the configuration");
    cron.queue.configure(&config);
    cron.table_of("www-data", OWNER, &SHIPPED.replace(" dispatch --for 60s", " dispatch"));
    cron.start(Clock::Real);
    within(Duration::from_secs(65), "the first tick", || cron.last_tick());
    let asked: Vec<f64> = (0..100)
        .map(|number| {
            let asked = since_epoch().as_secs_f64();
            cron.queue.request("stamp", &number.to_string());
            // Two minutes for all of them: every second of cron's minute is met.
            std::thread::sleep(Duration::from_millis(1200));
            asked
        })
        .collect();
    let began = within(Duration::from_secs(90), "the last one starts", || {
        let lines = cron.queue.scratch("state/BEGAN");
        (lines.len() == asked.len()).then_some(lines)
    });
    let mut waits: Vec<f64> = began
        .iter()
        .map(|line| {
            let (began, number) = line.split_once(' ').expect("a time and a title");
            began.parse::<f64>().expect("seconds") - asked[number.parse::<usize>().expect("a number")]
        })
        .collect();
    waits.sort_by(f64::total_cmp);
    let [p50, p95, slowest] = [49, 94, 99].map(|at| waits[at]);
    println!("100 requests under a plain tick each minute: p50 {p50:.1} s, p95 {p95:.1} s, slowest {slowest:.1} s");
    assert!(p95 <= P95, "{p95} s");
    cron.close();
}
