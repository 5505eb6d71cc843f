//! The cache: a name appears whole or not at all, stays as long as it was promised, and nothing else is touched.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::harness::{Queue, eventually, now, since_epoch, text};

const MINUTE: Duration = Duration::from_secs(60);

/// The seconds that the slow kinds of the fake exporter take.
fn seconds(queue: &Queue, text: &str) {
    fs::write(queue.path("S"), text).expect("a scratch file");
}

fn publish(queue: &Queue, title: &str) -> PathBuf {
    queue.request("ok", title);
    queue.dispatch().code(0);
    PathBuf::from(text(&queue.status("ok", title)["path"]))
}

/// A name of the form that a key gives, in its shard; the number makes it another.
fn made_up(queue: &Queue, number: u32) -> PathBuf {
    let hash = format!("{:02x}{number:030x}", number % 256);
    queue.path("cache").join(&hash[..2]).join(format!("old-en-default-{hash}.txt"))
}

fn sweep(queue: &Queue, more: &[&str]) -> serde_json::Value {
    let args = ["--json", "--quiet", "sweep"].iter().chain(more);
    queue.run(args).code(0).json()
}

// CASES 5
#[test]
fn a_file_is_ready_only_when_it_is_whole() {
    let queue = Queue::new();
    seconds(&queue, "1.5");
    queue.request("part", "A");
    let mut dispatch = queue.spawn(["dispatch", "--wait"]);
    let mut was_started = false;
    let ready = eventually("A is ready", || {
        let status = queue.status("part", "A");
        was_started |= status["state"] == "started" && queue.published().is_empty();
        (status["state"] == "ready").then_some(status)
    });
    assert!(was_started);
    assert_eq!(fs::read_to_string(text(&ready["path"])).unwrap(), "a good book: A\n");
    eventually("the tick ends", || dispatch.is_over().then_some(()));
    queue.assert_quiet();
}

// CASES 5
#[test]
fn nothing_of_a_half_written_file_is_left() {
    let queue = Queue::new();
    queue.reconfigure("timeout = \"60s\"", "timeout = \"1s\"");
    queue.request("half9", "A");
    queue.request("part", "B");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.status("half9", "A")["reason"], "killed_by_signal");
    assert_eq!(queue.status("part", "B")["state"], "failed_timeout");
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}

// CASES 5
#[test]
fn a_name_appears_by_a_rename_of_synced_data() {
    let queue = Queue::new();
    queue.request("ok", "A");
    let trace = queue.path("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-e", "trace=openat,fsync,rename,renameat,renameat2", "-o"]).arg(&trace);
    let dispatch = queue.command(["dispatch", "--wait"]);
    let done = strace.arg(dispatch.get_program()).args(dispatch.get_args()).output().expect("strace runs");
    assert!(done.status.success(), "{done:?}");
    let file = queue.published().pop().expect("a file");
    let (name, shard) = (file.file_name().unwrap().to_str().unwrap(), file.parent().unwrap().to_str().unwrap());
    let trace = fs::read_to_string(trace).unwrap();
    let lines: Vec<_> = trace.lines().collect();
    let place = |what: &dyn Fn(&str) -> bool| lines.iter().position(|line| what(line));
    let synced = place(&|line| line.contains("fsync(") && line.contains("/out/export.txt"));
    let renamed = place(&|line| line.contains("rename") && line.contains("/out/export.txt") && line.contains(name));
    let settled = place(&|line| line.contains("fsync(") && line.contains(&format!("{shard}>")));
    assert!(synced.is_some() && synced < renamed && renamed < settled, "{synced:?} {renamed:?} {settled:?}\n{trace}");
    let writes = |line: &&&str| line.contains("openat(") && line.contains(name) && !line.contains("O_RDONLY");
    assert_eq!(lines.iter().find(writes), None, "it was written in place");
    queue.assert_quiet();
}

// CASES 7
#[test]
fn exit_0_without_a_file_is_a_failure() {
    let queue = Queue::new();
    for (kind, reason) in [("none", "output_missing"), ("zero", "output_empty")] {
        queue.request(kind, kind);
        queue.dispatch().code(0).silent();
        let status = queue.status(kind, kind);
        assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_unknown".into(), reason.into()));
        assert!(text(&status["detail"]).starts_with("exit 0, but"), "{status}");
    }
    assert!(text(&queue.status("none", "none")["detail"]).contains("nothing to say"));
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}

// CASES 24
#[test]
fn a_sweep_that_dawdles_before_an_unlink_never_takes_the_fresh_file() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    for _ in 0..3 {
        Queue::age(&file, 11 * MINUTE);
        let mut sweep = queue.command(["sweep"]);
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o", "/dev/null", "-e", "trace=unlink,unlinkat"]);
        strace.args(["-e", "inject=unlink,unlinkat:delay_enter=700000"]).arg(sweep.get_program());
        strace.args(sweep.get_args()).stdout(std::process::Stdio::null());
        sweep = strace;
        let mut sweep = sweep.spawn().expect("strace runs");
        queue.request("ok", "A");
        queue.dispatch().code(0);
        assert!(sweep.wait().expect("the sweep ends").success());
        assert_eq!(queue.state("ok", "A"), "ready");
        assert_eq!(fs::read_to_string(&file).unwrap(), "a good book: A\n");
    }
    queue.assert_quiet();
}

// CASES 24
#[test]
fn sweeps_beside_exports_leave_every_fresh_file() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    for round in 0..25 {
        Queue::age(&file, 11 * MINUTE);
        let sweep = queue.spawn(["sweep"]);
        queue.request("ok", "A");
        queue.dispatch().code(0);
        sweep.wait().code(0);
        assert_eq!(queue.state("ok", "A"), "ready", "round {round}");
        assert!(file.exists());
    }
    assert_eq!(queue.scratch("STARTS").len(), 26);
    queue.assert_quiet();
}

// CASES 27
#[test]
fn a_worker_killed_after_publishing_costs_no_second_export() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_FAULT", "publish.after_rename=delay:60000");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("ok", "A", "ready");
    assert_eq!(queue.sql("SELECT state FROM jobs"), ["1"]);
    dispatch.signal("KILL");
    for worker in queue.workers() {
        worker.slay();
    }
    eventually("the worker is dead", || queue.workers().is_empty().then_some(()));
    queue.set("EXPORT_QUEUE_FAULT", "");
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.sql("SELECT outcome, present FROM runs"), ["ready|1"]);
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

// CASES 27
#[test]
fn a_database_that_is_locked_when_the_exporter_ends_loses_no_file() {
    let queue = Queue::new();
    seconds(&queue, "0.5");
    queue.request("slow", "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    eventually("the exporter runs", || (!queue.exporters().is_empty()).then_some(()));
    let mut other = rusqlite::Connection::open(queue.path("state/queue.db")).unwrap();
    other.busy_timeout(Duration::from_secs(10)).unwrap();
    let held = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    queue.await_state("slow", "A", "ready");
    eventually("the worker gives up", || queue.workers().is_empty().then_some(()));
    drop(held);
    dispatch.wait().code(75);
    assert_eq!(queue.state("slow", "A"), "ready");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

// CASES 35
#[test]
fn what_exporters_leave_in_their_temporary_directories_goes_with_them() {
    let queue = Queue::new();
    let titles = ["A", "B", "C", "D"];
    for title in &titles {
        queue.request("junk", title);
    }
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    let junk = |queue: &Queue| -> Vec<PathBuf> {
        queue.work_dirs().iter().map(|dir| dir.join("tmp/junk")).filter(|junk| junk.exists()).collect()
    };
    let running = eventually("both slots work", || Some(junk(&queue)).filter(|junk| junk.len() == 2));
    queue.run(["dispatch"]).code(0);
    queue.run(["sweep"]).code(0);
    assert!(running.iter().all(|junk| junk.exists()), "a running export keeps what is its own");
    dispatch.signal("KILL");
    for worker in queue.workers() {
        worker.slay();
    }
    eventually("the workers are dead", || queue.workers().is_empty().then_some(()));
    assert!(running.iter().all(|junk| junk.exists()), "this is what a crash leaves");
    queue.reconfigure("timeout = \"60s\"", "timeout = \"1s\"");
    queue.dispatch().code(0).silent();
    for title in &titles {
        assert_eq!(queue.state("junk", title), "failed_timeout");
    }
    assert!(queue.work_dirs().is_empty());
    assert_eq!(fs::read_dir(queue.path("cache/.work")).unwrap().count(), 0);
    queue.assert_quiet();
}

// CASES 35
#[test]
fn a_work_directory_of_no_run_is_removed_by_a_tick() {
    let queue = Queue::new();
    publish(&queue, "A");
    let orphan = queue.path("cache/.work/00112233445566778899");
    fs::create_dir_all(orphan.join("tmp/deep")).unwrap();
    fs::write(orphan.join("tmp/deep/junk"), "junk").unwrap();
    let foreign = queue.path("cache/.work/notes");
    fs::create_dir(&foreign).unwrap();
    queue.dispatch().code(0).silent();
    assert!(!orphan.exists());
    assert!(foreign.exists(), "its name is none of ours");
    fs::remove_dir(foreign).unwrap();
    queue.assert_quiet();
}

// CASES 37
#[test]
fn the_output_path_has_the_real_extension_in_a_directory_of_its_own() {
    let queue = Queue::new();
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    let section = text.split("[format.args]").nth(1).unwrap().split("[format.").next().unwrap().to_owned();
    let section = section.replace("\"txt\"", "\"epub\"\ncheck = \"none\"");
    queue.configure(&format!("{text}[format.book]{section}[format.strict]{}", section.replace("\"args\"", "\"ext\"")));
    for title in ["A", "A ", "a"] {
        queue.request("book", title);
    }
    queue.request("strict", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("strict", "A"), "ready");
    let outputs = queue.scratch("OUTPUTS");
    let mut dirs: Vec<_> = outputs.iter().map(|output| Path::new(output).parent().unwrap()).collect();
    assert!(outputs.iter().all(|output| Path::new(output).extension() == Some("epub".as_ref())), "{outputs:?}");
    dirs.sort();
    dirs.dedup();
    assert_eq!(dirs.len(), outputs.len(), "{outputs:?}");
    assert!(outputs.len() >= 2);
    queue.assert_quiet();
}

// CASES 45
#[test]
fn a_path_that_was_handed_out_stays_for_the_grace() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    Queue::age(&file, 9 * MINUTE + Duration::from_secs(20));
    assert_eq!(queue.state("ok", "A"), "ready");
    Queue::age(&file, 9 * MINUTE + Duration::from_secs(31));
    assert_eq!(queue.state("ok", "A"), "absent");
    sweep(&queue, &[]);
    queue.dispatch().code(0).silent();
    assert!(file.exists(), "its grace is not over");
    let mut reader = fs::File::open(&file).unwrap();
    Queue::age(&file, 10 * MINUTE + Duration::from_secs(1));
    assert_eq!(sweep(&queue, &[])["deleted"], 1);
    assert!(!file.exists());
    let mut content = String::new();
    reader.read_to_string(&mut content).unwrap();
    assert_eq!(content, "a good book: A\n", "an open download goes on");
    queue.assert_quiet();
}

// CASES 45
#[test]
fn an_open_download_outlives_a_refresh() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    let reader = fs::File::open(&file).unwrap();
    let before = reader.metadata().unwrap();
    queue.run(["request", "--refresh", "--format", "ok", "A"]).code(0);
    queue.dispatch().code(0).silent();
    let after = fs::metadata(&file).unwrap();
    assert_ne!(before.ino(), after.ino(), "never written in place");
    assert_eq!(reader.metadata().unwrap().len(), before.len());
    queue.assert_quiet();
}

#[test]
fn a_sweep_of_all_breaks_no_promise_but_by_force() {
    let queue = Queue::new();
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nserve_grace = \"1s\"");
    let file = publish(&queue, "A");
    assert_eq!(sweep(&queue, &["--all", "--dry-run"])["aged"], 1);
    assert_eq!(queue.state("ok", "A"), "ready", "a dry run changes nothing");
    let started = now();
    let sweeping = queue.spawn(["--quiet", "sweep", "--all"]);
    queue.await_state("ok", "A", "absent");
    assert!(file.exists() || started.elapsed() >= Duration::from_secs(1), "deleted before its promise was over");
    sweeping.wait().code(0);
    assert!(!file.exists());
    let again = publish(&queue, "A");
    assert_eq!(sweep(&queue, &["--all", "--force"])["deleted"], 1);
    assert!(!again.exists());
    queue.assert_quiet();
}

#[test]
fn a_promise_made_while_a_sweep_waits_is_kept_for_the_whole_grace() {
    let mut queue = Queue::new();
    let (max_age, grace) = (10 * MINUTE, Duration::from_secs(2));
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nserve_grace = \"2s\"");
    let file = publish(&queue, "A");
    let hits = queue.path("HITS");
    queue.set("EXPORT_QUEUE_FAULT_HITS", hits.to_str().expect("a path"));
    queue.set("EXPORT_QUEUE_FAULT", "sweep.before_lock=delay:5000");
    let sweeping = queue.spawn(["--quiet", "sweep", "--all"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    eventually("the sweep has made its plan", || hits.exists().then_some(()));
    let promised = since_epoch();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.await_state("ok", "A", "absent");
    let date = fs::metadata(&file).expect("it is promised").modified().expect("a date");
    let date = date.duration_since(std::time::UNIX_EPOCH).expect("a date after 1970");
    let (goes, until) = (date + max_age, promised + grace);
    assert!(goes >= until, "it goes {:?} early", until.saturating_sub(goes));
    sweeping.wait().code(0);
    assert!(!file.exists());
    queue.assert_quiet();
}

// CASES 66
#[test]
fn a_sweep_follows_no_link_and_takes_only_what_is_ours() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    let shard = file.parent().unwrap();
    let precious = queue.path("precious");
    fs::create_dir(&precious).unwrap();
    let old = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "precious").unwrap();
        Queue::age(path, 11 * MINUTE);
    };
    // A link at a name of ours, one that leads nowhere, a file with two names, a directory, and names that are not ours.
    old(&precious.join("one"));
    let (link, dangling, hard, dir) = (made_up(&queue, 1), made_up(&queue, 2), made_up(&queue, 3), made_up(&queue, 4));
    for path in [&link, &dangling, &hard, &dir] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    symlink(precious.join("one"), &link).unwrap();
    symlink(precious.join("nothing"), &dangling).unwrap();
    fs::hard_link(precious.join("one"), &hard).unwrap();
    old(&dir.join("inside.txt"));
    let foreign = [shard.join("notes.txt"), shard.join("deep/old-en-default-00.txt"), queue.path("cache/README")];
    for path in &foreign {
        old(path);
    }
    // A directory elsewhere with names of ours, linked in the place of a shard.
    let elsewhere = made_up(&queue, 0xee);
    let target = precious.join("ee").join(elsewhere.file_name().unwrap());
    old(&target);
    symlink(precious.join("ee"), elsewhere.parent().unwrap()).unwrap();
    // A name of ours in the wrong shard.
    let misplaced = shard.join(made_up(&queue, 0xef).file_name().unwrap());
    old(&misplaced);
    for wish in [&[][..], &["--all", "--force"]] {
        Queue::age(&publish(&queue, "A"), 11 * MINUTE);
        sweep(&queue, wish);
        queue.dispatch().code(0).silent();
        assert!(!file.exists(), "what is ours went");
    }
    let mut left = vec![precious.join("one"), target, hard, dir.join("inside.txt"), misplaced];
    left.extend(foreign);
    for path in &left {
        assert_eq!(fs::read_to_string(path).unwrap_or_default(), "precious", "{}", path.display());
    }
    assert!(fs::symlink_metadata(&link).is_ok() && fs::symlink_metadata(&dangling).is_ok());
}

// CASES 66
#[test]
fn a_shard_that_became_a_link_leads_no_tick_out_of_the_cache() {
    let queue = Queue::new();
    let file = publish(&queue, "A");
    let (shard, moved) = (file.parent().unwrap(), queue.path("moved"));
    fs::rename(shard, &moved).unwrap();
    symlink(&moved, shard).unwrap();
    let target = moved.join(file.file_name().unwrap());
    Queue::age(&target, 11 * MINUTE);
    queue.sql("UPDATE runs SET published_at = 1 RETURNING token");
    queue.dispatch().code(0).silent();
    sweep(&queue, &["--all", "--force"]);
    assert!(target.exists(), "a file outside of the cache was deleted");
    Queue::age(&target, MINUTE);
    assert_eq!(queue.state("ok", "A"), "absent", "a link is not followed");
}

// CASES 66
#[test]
fn a_cache_behind_a_link_is_swept_and_a_directory_without_a_marker_never() {
    let queue = Queue::new();
    fs::create_dir(queue.path("disk")).unwrap();
    symlink(queue.path("disk"), queue.path("cache")).unwrap();
    let file = publish(&queue, "A");
    Queue::age(&file, 11 * MINUTE);
    assert_eq!(sweep(&queue, &[])["deleted"], 1);
    let wrong = queue.path("home/ab");
    fs::create_dir_all(&wrong).unwrap();
    let precious = wrong.join(file.file_name().unwrap());
    fs::write(&precious, "precious").unwrap();
    queue.reconfigure("dir = \"cache\"", "dir = \"home\"");
    for verb in [&["sweep", "--all", "--force"][..], &["dispatch"]] {
        let said = queue.run(verb).code(78);
        assert!(said.err.contains("is not empty and not a cache of this program"), "{said:?}");
    }
    assert!(precious.exists());
}

// CASES 83
#[test]
fn ten_sweeps_at_once_share_the_work_beside_exports() {
    const OLD: u32 = 3000;
    let queue = Queue::new();
    publish(&queue, "A");
    for number in 0..OLD {
        let path = made_up(&queue, number);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "old").unwrap();
        Queue::age(&path, 11 * MINUTE);
    }
    let titles: Vec<String> = (0..6).map(|n| format!("book {n}")).collect();
    for title in &titles {
        queue.request("ok", title);
    }
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    let sweeps: Vec<_> = (0..10).map(|_| queue.spawn(["--json", "sweep"])).collect();
    let swept: u64 = sweeps.into_iter().map(|sweep| sweep.wait().code(0).json()["deleted"].as_u64().unwrap()).sum();
    dispatch.wait().code(0).silent();
    // The tick beside them walks, too, if none has for an hour; the first one here has.
    assert_eq!(swept, u64::from(OLD));
    for title in &titles {
        assert_eq!(queue.state("ok", title), "ready");
    }
    assert!(queue.path("cache").is_dir());
    assert_eq!(sweep(&queue, &[])["deleted"], 0, "an empty cache is no trouble");
    queue.assert_quiet();
}

// CASES 83
#[test]
fn a_missing_cache_directory_is_made_again() {
    let queue = Queue::new();
    publish(&queue, "A");
    fs::remove_dir_all(queue.path("cache")).unwrap();
    assert_eq!(queue.state("ok", "A"), "absent", "what was deleted by hand is absent");
    assert_eq!(sweep(&queue, &[])["deleted"], 0);
    assert_eq!(fs::read_to_string(publish(&queue, "A")).unwrap(), "a good book: A\n");
    queue.assert_quiet();
}

// CASES 84
#[test]
fn the_end_of_summer_time_changes_no_age() {
    let mut queue = Queue::new();
    queue.set("TZ", "Europe/Berlin");
    let change: DateTime<Utc> = "2024-10-27T01:00:00Z".parse().unwrap();
    let shift = |queue: &mut Queue, minutes: i64| {
        let offset = change.timestamp() + minutes * 60 - i64::try_from(since_epoch().as_secs()).unwrap();
        queue.set("EXPORT_QUEUE_TEST_CLOCK", &offset.to_string());
    };
    shift(&mut queue, -5);
    let file = publish(&queue, "A");
    let said = text(&queue.status("ok", "A")["published_at"]);
    assert!(said.starts_with("2024-10-27T00:55:0"), "the shift did not take: {said}");
    shift(&mut queue, 4);
    queue.dispatch().code(0).silent();
    assert_eq!(
        queue.state("ok", "A"),
        "ready",
        "nine minutes old, though the clock on the wall says 02:04 after 02:55"
    );
    shift(&mut queue, 6);
    queue.dispatch().code(0).silent();
    assert!(!file.exists(), "eleven minutes old");
    queue.assert_quiet();
}

#[test]
fn every_path_opens_whole_until_its_promise_is_over_through_300_expiries() {
    const TITLES: usize = 15;
    const ROUNDS: u64 = 300;
    let queue = Queue::new();
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nmax_age = \"2s\"\nserve_grace = \"1s\"");
    queue.run(["init", "--quiet"]).code(0);
    let (over, opened, started) = (AtomicBool::new(false), AtomicU64::new(0), now());
    let exports = || queue.scratch("STARTS").len() as u64;
    let go_on = || !over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while go_on() {
                queue.run(["dispatch", "--for", "5s"]).code(0).silent();
            }
        });
        scope.spawn(|| {
            while go_on() {
                queue.run(["--quiet", "sweep"]).code(0);
            }
        });
        // Half of the titles are polled, the others asked for: each is asked for again as soon as it has expired.
        for half in 0..2 {
            let (queue, opened, go_on) = (&queue, &opened, &go_on);
            scope.spawn(move || {
                let mut handed_out: Vec<(PathBuf, String, Duration)> = Vec::new();
                while go_on() {
                    for title in (0..TITLES).filter(|n| n % 2 == half).map(|n| format!("book {n}")) {
                        let status = queue.status("ok", &title);
                        if status["state"] == "absent" {
                            queue.request("ok", &title);
                        } else if status["state"] == "ready" {
                            let until: DateTime<Utc> = text(&status["expires_at"]).parse().unwrap();
                            let until = Duration::from_millis(until.timestamp_millis().unsigned_abs() + 1000);
                            handed_out.push((text(&status["path"]).into(), title, until));
                        }
                        handed_out.retain(|(_, _, until)| since_epoch() < *until);
                        for (path, title, until) in &handed_out {
                            let read = fs::read_to_string(path);
                            match read {
                                Ok(content) => assert_eq!(content, format!("a good book: {title}\n")),
                                Err(error) => assert!(since_epoch() >= *until, "{}: {error}", path.display()),
                            }
                            opened.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        while exports() < ROUNDS + TITLES as u64 && started.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(exports() >= ROUNDS, "{} exports", exports());
    assert!(opened.into_inner() > ROUNDS);
    queue.assert_quiet();
}

#[test]
fn what_is_used_stays_and_what_is_not_goes() {
    let mut queue = Queue::new();
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nttl_from = \"accessed\"");
    let (used, unused) = (publish(&queue, "used"), publish(&queue, "unused"));
    let first = text(&queue.status("ok", "used")["expires_at"]);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "500");
    assert_eq!(queue.state("ok", "used"), "ready");
    queue.dispatch().code(0).silent();
    let renewed = queue.status("ok", "used");
    assert!(text(&renewed["expires_at"]) > first, "{renewed}");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "700");
    // It was handed out before it expired, and that is noted although no tick came in between.
    assert_eq!(queue.state("ok", "used"), "ready");
    assert_eq!(queue.state("ok", "unused"), "absent");
    queue.dispatch().code(0).silent();
    assert_eq!((used.exists(), unused.exists()), (true, false));
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "1301");
    queue.dispatch().code(0).silent();
    assert!(!used.exists(), "nobody used it any more");
}

#[test]
fn a_use_is_noted_once_a_minute_and_waits_for_no_writer() {
    let mut queue = Queue::new();
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nttl_from = \"accessed\"");
    publish(&queue, "A");
    let noted = |queue: &Queue| queue.sql("SELECT accessed_at FROM runs").remove(0);
    queue.state("ok", "A");
    assert_eq!(noted(&queue), "", "it is known of the same minute");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "61");
    queue.state("ok", "A");
    let first = noted(&queue);
    assert_ne!(first, "");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "90");
    queue.state("ok", "A");
    assert_eq!(noted(&queue), first);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "200");
    let writer = rusqlite::Connection::open(queue.path("state/queue.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = now();
    assert_eq!(queue.state("ok", "A"), "ready");
    assert!(start.elapsed() < Duration::from_secs(4), "it waited for {:?}", start.elapsed());
    drop(writer);
    assert_eq!(noted(&queue), first, "whoever cannot write still answers");
}

#[test]
fn the_least_recently_promised_files_make_room() {
    let mut queue = Queue::new();
    // Each book has 14 bytes: two fit.
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nmax_bytes = 30");
    let mut paths = Vec::new();
    for (title, clock) in [("B", "0"), ("A", "10"), ("C", "20")] {
        queue.set("EXPORT_QUEUE_TEST_CLOCK", clock);
        paths.push(publish(&queue, title));
    }
    let dry = sweep(&queue, &["--dry-run"]);
    assert!(dry["aged"] == 1 || queue.state("ok", "B") == "absent", "{dry}");
    queue.run(["dispatch"]).code(0).silent();
    let states = ["A", "B", "C"].map(|title| queue.state("ok", title));
    assert_eq!(states, ["ready", "absent", "ready"]);
    assert!(paths[0].exists(), "its path was promised for one grace more");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "51");
    queue.run(["dispatch"]).code(0).silent();
    assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(sweep(&queue, &["--dry-run"])["aged"], 0);
}
