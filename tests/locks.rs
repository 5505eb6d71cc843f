//! Slots and claims: never more than N, each job once, whoever dispatches, dies, or takes the lock files away.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Queue, Running, eventually, now, text};
use crate::people::{House, Who};

const MINUTE: Duration = Duration::from_secs(60);

fn seconds(queue: &Queue, text: &str) {
    fs::write(queue.path("S"), text).expect("a scratch file");
}

/// How many exporters lived at one instant: those that two looks, one after the other, have both seen.
fn live_exporters(queue: &Queue) -> usize {
    let look = || -> BTreeMap<i32, String> {
        let run = |environment: &str| {
            let marker = environment.split('\0').find(|variable| variable.starts_with("EXPORT_QUEUE_RUN="));
            marker.unwrap_or_default().to_owned()
        };
        queue.exporters().into_iter().map(|process| (process.pid, run(&process.environment))).collect()
    };
    let first = look();
    let mut runs: Vec<_> =
        first.into_iter().filter(|(pid, _)| crate::harness::lives(*pid)).map(|(_, run)| run).collect();
    runs.sort();
    runs.dedup();
    runs.len()
}

/// The largest number of runs that LOG shows between their start and their end.
fn most_at_once(log: &[String]) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for line in log {
        if line.starts_with("start ") {
            open += 1;
        } else {
            open -= 1;
        }
        most = most.max(open);
    }
    most
}

fn starts(queue: &Queue) -> Vec<String> {
    let mut starts = queue.scratch("STARTS");
    starts.sort();
    starts
}

/// Samples the live exporters until `done`, with the largest number seen.
fn sample(queue: &Queue, done: impl Fn() -> bool) -> usize {
    let mut most = 0;
    let started = now();
    while !done() {
        most = most.max(live_exporters(queue));
        assert!(started.elapsed() < Duration::from_secs(100), "it never ends");
    }
    most
}

fn is_drained(queue: &Queue) -> bool {
    queue.sql("SELECT count(*) FROM jobs WHERE state < 2") == ["0"]
}

// CASES 14
// CASES 15
#[test]
fn twenty_dispatches_at_once_start_each_book_once_and_two_at_a_time() {
    for _ in 0..2 {
        let queue = Queue::new();
        seconds(&queue, "0.2");
        let titles: Vec<String> = (10..60).map(|n| format!("book {n}")).collect();
        for title in &titles {
            queue.request("mark", title);
        }
        let dispatches: Vec<Running> = (0..20).map(|_| queue.spawn(["dispatch", "--wait"])).collect();
        assert_eq!(sample(&queue, || is_drained(&queue)), 2);
        for dispatch in dispatches {
            dispatch.wait().code(0).silent();
        }
        assert_eq!(most_at_once(&queue.scratch("LOG")), 2);
        assert_eq!(starts(&queue), titles);
        assert_eq!(queue.published().len(), titles.len());
        queue.assert_quiet();
    }
}

// CASES 15
#[test]
fn never_more_than_two_run_while_ticks_and_workers_are_killed() {
    let queue = Queue::new();
    queue.reconfigure("[failures]\n", "[failures]\nmax_interruptions = 100\n");
    seconds(&queue, "0.3");
    for n in 0..16 {
        queue.request("mark", &format!("book {n}"));
    }
    let (over, mut round) = (AtomicBool::new(false), 0);
    let most = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_drained(&queue) {
                round += 1;
                let ticks: Vec<_> = (0..4).map(|_| queue.spawn(["dispatch", "--wait"])).collect();
                if round < 12 {
                    eventually("something runs", || {
                        (is_drained(&queue) || !queue.exporters().is_empty()).then_some(())
                    });
                    if round % 2 == 0 {
                        for worker in queue.workers() {
                            worker.kill("KILL");
                        }
                    }
                    // Dropping kills the ticks.
                } else {
                    for tick in ticks {
                        tick.wait();
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        sample(&queue, || over.load(Ordering::Relaxed))
    });
    assert_eq!(most, 2);
    queue.dispatch().code(0);
    assert_eq!(queue.published().len(), 16);
    queue.assert_quiet();
}

// CASES 16
#[test]
fn hundreds_who_ask_for_one_book_cause_one_export() {
    let queue = Queue::new();
    seconds(&queue, "1");
    queue.run(["init", "--quiet"]).code(0);
    let dispatch = queue.spawn(["dispatch", "--for", "60s"]);
    std::thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let said = queue.run(["request", "--format", "mark", "A"]);
                    assert!([0, 3, 4].contains(&said.code), "{said:?}");
                    assert_eq!(said.err, "");
                }
            });
        }
    });
    let ready = queue.await_state("mark", "A", "ready");
    for _ in 0..30 {
        assert_eq!(queue.request("mark", "A")["state"], "ready");
    }
    eventually("the row goes", || queue.sql("SELECT id FROM jobs").is_empty().then_some(()));
    assert_eq!(starts(&queue), ["A"]);
    Queue::age(&PathBuf::from(text(&ready["path"])), 10 * MINUTE + Duration::from_secs(1));
    for _ in 0..10 {
        queue.request("mark", "A");
    }
    queue.await_state("mark", "A", "ready");
    dispatch.signal("TERM");
    dispatch.wait();
    assert_eq!(starts(&queue), ["A", "A"]);
    queue.assert_quiet();
}

// CASES 16
#[test]
fn a_request_overtaken_by_its_file_causes_no_second_export() {
    let mut queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    queue.request("ok", "A");
    // The file has its date and is about to get its name …
    queue.set("EXPORT_QUEUE_FAULT", "publish.before_rename=delay:1500");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    let dated = || queue.work_dirs().iter().any(|dir| dir.join("out/export.txt").exists());
    eventually("the file is complete", || dated().then_some(()));
    eventually("its worker holds the cache lock", || {
        let lock = fs::File::open(queue.path("cache/.lock")).ok()?;
        fs2::FileExt::try_lock_exclusive(&lock).is_err().then_some(())
    });
    // … when somebody asks who sees neither it nor, after a long wait for the database, the row.
    let request = queue.command(["--json", "--exit-zero", "request", "--format", "ok", "A"]);
    let mut strace = std::process::Command::new("strace");
    strace.args(["-o", "/dev/null", "-e", "trace=openat", "-P"]).arg(queue.path("state/queue.db"));
    strace.args(["-e", "inject=openat:delay_enter=3000000"]).arg(request.get_program()).args(request.get_args());
    let said = strace.output().expect("strace runs");
    dispatch.wait().code(0).silent();
    let answer: Value = serde_json::from_slice(&said.stdout).expect("an answer");
    assert_eq!(answer["state"], "ready", "{answer}");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(starts(&queue), ["A"]);
    queue.assert_quiet();
}

// CASES 26
#[test]
fn a_failure_is_shown_and_gives_way_to_a_new_request() {
    for kind in ["code1", "slow"] {
        let mut queue = Queue::new();
        queue.reconfigure("timeout = \"60s\"", "timeout = \"1s\"");
        queue.request(kind, "A");
        queue.dispatch().code(0).silent();
        let first = queue.status(kind, "A");
        assert!(text(&first["state"]).starts_with("failed_"), "{first}");
        let again = queue.request(kind, "A");
        assert_eq!((&again["state"], &again["reason"]), (&first["state"], &first["reason"]), "it is held for a minute");
        assert!(again["retry_after_seconds"].as_u64().is_some_and(|left| left > 0 && left <= 60), "{again}");
        queue.reconfigure(&format!("\"{kind}\", \"{{output}}\""), "\"ok\", \"{output}\"");
        for shift in ["3600", "90000"] {
            queue.set("EXPORT_QUEUE_TEST_CLOCK", shift);
            assert_eq!(queue.status(kind, "A")["reason"], first["reason"], "until a tick expires it, it is shown");
            assert_eq!(queue.status(kind, "A")["retry_after_seconds"], Value::Null);
        }
        let queued = queue.request(kind, "A");
        assert_eq!((&queued["state"], &queued["id"]), (&Value::from("queued"), &first["id"]));
        assert_eq!((&queued["attempts"], &queued["detail"]), (&Value::from(0), &Value::Null));
        assert_ne!(queued["reason"], first["reason"]);
        queue.dispatch().code(0).silent();
        assert_eq!(queue.state(kind, "A"), "ready");
        queue.assert_quiet();
    }
}

#[test]
fn a_retry_ignores_the_hold_and_a_failure_expires_after_a_day() {
    let mut queue = Queue::new();
    queue.request("code1", "A");
    queue.request("code1", "B");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.request("code1", "A")["state"], "failed_unknown");
    queue.run(["request", "--retry", "--format", "code1", "A"]).code(3);
    queue.dispatch().code(0).silent();
    assert_eq!(starts(&queue), ["A", "A", "B"]);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "86500");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("code1", "A"), "absent");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    queue.assert_quiet();
}

#[test]
fn the_old_file_is_served_while_a_refresh_runs() {
    let queue = Queue::new();
    seconds(&queue, "0.1");
    queue.request("slow", "A");
    queue.dispatch().code(0).silent();
    let first = queue.status("slow", "A");
    seconds(&queue, "1");
    let asked = queue.run(["--json", "request", "--refresh", "--format", "slow", "A"]).code(0).json();
    assert_eq!((&asked["state"], &asked["position"]), (&Value::from("ready"), &Value::from(1)));
    assert!(asked["id"].is_i64());
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    eventually("it runs", || (!queue.exporters().is_empty()).then_some(()));
    let during = queue.status("slow", "A");
    assert_eq!((&during["state"], &during["published_at"]), (&first["state"], &first["published_at"]));
    dispatch.wait().code(0).silent();
    let after = queue.status("slow", "A");
    assert_eq!((&after["state"], &after["id"]), (&Value::from("ready"), &Value::Null));
    assert_ne!(after["published_at"], first["published_at"]);
    queue.assert_quiet();
}

#[test]
fn a_refresh_asked_for_during_a_run_makes_another() {
    let queue = Queue::new();
    seconds(&queue, "1");
    queue.request("slow", "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("slow", "A", "started");
    queue.run(["request", "--refresh", "--format", "slow", "A"]).code(4);
    queue.run(["request", "--format", "slow", "A"]).code(4);
    dispatch.wait().code(0).silent();
    assert_eq!(starts(&queue), ["A", "A"]);
    assert_eq!(queue.sql("SELECT outcome FROM runs"), ["ready", "ready"]);
    assert_eq!(queue.state("slow", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_refresh_that_fails_leaves_the_old_file_and_says_why() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    queue.reconfigure("\"ok\", \"{output}\"", "\"code1\", \"{output}\"");
    queue.run(["request", "--refresh", "--format", "ok", "A"]).code(0);
    queue.dispatch().code(0).silent();
    let status = queue.status("ok", "A");
    assert_eq!((&status["state"], &status["reason"]), (&Value::from("ready"), &Value::from("exit_nonzero")));
    assert_eq!(status["detail"], "exit 1: one image gave 404");
    assert_eq!(queue.published().len(), 1);
    queue.assert_quiet();
}

/// A queue with ten formats that are all made from the given kind.
fn derived_from(kind: &str) -> (Queue, Vec<String>) {
    let queue = Queue::new();
    let mut config = fs::read_to_string(queue.path("config.toml")).unwrap();
    let names: Vec<String> = (0..10).map(|n| format!("derived{n}")).collect();
    for name in &names {
        config.push_str(&format!(
            "[format.{name}]\nextension = \"d\"\nbase = \"{kind}\"\ncommand = [\"cp\", \"{{input}}\", \"{{output}}\"]\n"
        ));
    }
    queue.configure(&config);
    (queue, names)
}

#[test]
fn ten_formats_asked_for_at_once_make_one_base() {
    let (queue, names) = derived_from("mark");
    seconds(&queue, "0.5");
    for name in &names {
        queue.request(name, "A");
    }
    queue.dispatch().code(0).silent();
    for name in &names {
        let status = queue.status(name, "A");
        assert_eq!(status["state"], "ready", "{status}");
        assert_eq!(fs::read_to_string(text(&status["path"])).unwrap(), "a good book: A\n");
    }
    assert_eq!(starts(&queue), ["A"]);
    assert_eq!(queue.state("mark", "A"), "ready", "the base is there for all");
    queue.assert_quiet();
}

#[test]
fn a_base_that_fails_fails_what_is_made_from_it_with_its_reason() {
    let (queue, names) = derived_from("code1");
    for name in &names {
        queue.request(name, "A");
    }
    queue.dispatch().code(0).silent();
    for name in &names {
        let status = queue.status(name, "A");
        assert_eq!(
            (&status["state"], &status["reason"]),
            (&Value::from("failed_unknown"), &Value::from("base_failed"))
        );
        assert_eq!(status["detail"], "code1: exit_nonzero: exit 1: one image gave 404");
    }
    assert_eq!(starts(&queue), ["A"]);
    queue.assert_quiet();
}

#[test]
fn a_base_without_a_byte_is_made_again() {
    let (queue, names) = derived_from("ok");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let base = text(&queue.status("ok", "A")["path"]);
    fs::File::create(base).unwrap();
    queue.request(&names[0], "A");
    queue.dispatch().code(0).silent();
    let derived = queue.status(&names[0], "A");
    assert_eq!(derived["state"], "ready", "{derived}");
    assert_eq!(fs::read_to_string(text(&derived["path"])).unwrap(), "a good book: A\n");
    queue.assert_quiet();
}

#[test]
fn a_base_is_made_in_its_own_queue_unless_the_job_was_sent_elsewhere() {
    let (queue, names) = derived_from("ok");
    let derived = format!("[format.{}]\n", names[0]);
    queue.reconfigure(&derived, &format!("{derived}queue = \"books\"\n"));
    let config = fs::read_to_string(queue.path("config.toml")).unwrap();
    queue.configure(&format!("{config}[queue.books]\nmin_free_disk = 0\n[queue.express]\nmin_free_disk = 0\n"));
    queue.request(&names[0], "A");
    queue.run(["request", "--queue", "express", "--format", &names[0], "B"]).code(3);
    queue.dispatch().code(0).silent();
    let bases = "SELECT title, queue FROM runs WHERE format = 'ok' ORDER BY title";
    assert_eq!(queue.sql(bases), ["A|default", "B|express"]);
    queue.assert_quiet();
}

#[test]
fn a_base_that_failed_before_is_tried_again_where_failures_are_not_held() {
    let (queue, names) = derived_from("code1");
    queue.reconfigure("hold = \"60s\"", "hold = \"0s\"");
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("code1", "A"), starts(&queue).len()), ("failed_unknown".to_owned(), 1));
    queue.request(&names[0], "A");
    queue.dispatch().code(0).silent();
    assert_eq!(starts(&queue).len(), 2, "the failure from before this wish is no answer to it");
    assert_eq!(text(&queue.status(&names[0], "A")["reason"]), "base_failed", "the one from after it is");
    queue.assert_quiet();
}

#[test]
fn a_failed_base_that_is_tried_again_brings_back_what_is_made_from_it() {
    let (queue, names) = derived_from("code1");
    for name in &names {
        queue.request(name, "A");
    }
    queue.dispatch().code(0).silent();
    // The converter is mended; whoever tries the base again needs to know of nothing that was to be made from it.
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    queue.configure(&text.replace("\"code1\", \"{output}\"", "\"ok\", \"{output}\""));
    queue.run(["retry", "--format", "code1", "A"]).code(3);
    for name in &names {
        assert_eq!(queue.state(name, "A"), "queued");
    }
    queue.dispatch().code(0).silent();
    for name in &names {
        assert_eq!(queue.state(name, "A"), "ready");
    }
    assert_eq!(starts(&queue), ["A", "A"]);
    queue.assert_quiet();
}

#[test]
fn a_base_past_its_age_is_made_again_and_one_still_needed_is_spared() {
    let (queue, names) = derived_from("ok");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let base = queue.published().pop().unwrap();
    Queue::age(&base, 9 * MINUTE + Duration::from_secs(40));
    queue.request(&names[0], "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state(&names[0], "A"), "ready");
    assert_eq!(starts(&queue), ["A", "A"]);
    // Another waits for it, published after that was asked for, while it grows too old.
    queue.request(&names[1], "A");
    queue.sql("UPDATE jobs SET submitted_at = submitted_at - 3000000 RETURNING id");
    Queue::age(&base, 11 * MINUTE);
    queue.run(["--quiet", "sweep"]).code(0);
    assert!(base.exists());
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state(&names[1], "A"), "ready");
    assert_eq!(starts(&queue), ["A", "A"], "the spared base was used");
    queue.run(["--quiet", "sweep"]).code(0);
    assert!(!base.exists(), "nobody needs it any more");
    queue.assert_quiet();
}

#[test]
fn a_refresh_of_what_is_made_from_a_base_uses_no_base_begun_before() {
    let (queue, names) = derived_from("slow");
    seconds(&queue, "1");
    queue.request("slow", "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("slow", "A", "started");
    queue.run(["request", "--refresh", "--format", &names[0], "A"]).code(3);
    dispatch.wait().code(0).silent();
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state(&names[0], "A"), "ready");
    let runs =
        queue.sql("SELECT format, outcome, submitted_at, started_at, published_at, finished_at FROM runs ORDER BY 4");
    assert_eq!(starts(&queue), ["A", "A"], "the first base may hold what was there before the refresh: {runs:#?}");
    queue.assert_quiet();
}

// CASES 46
#[test]
fn without_its_lock_file_nothing_is_done() {
    for (lock, verb) in [("cache/.lock", "sweep"), ("state/slots/default.0", "dispatch")] {
        let house = House::new();
        let queue = &house.queue;
        house.call(Who::Owner, ["--quiet", "init"]).code(0);
        house.call(Who::Owner, ["request", "--format", "ok", "old"]).code(3);
        house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
        let file = queue.published().pop().expect("a file");
        Queue::age(&file, 11 * MINUTE);
        house.call(Who::Owner, ["request", "--format", "ok", "A"]).code(3);
        queue.reconfigure("slots = 2", "slots = 1");
        house.open_up(&queue.path("config.toml"), 0o644);
        let path = queue.path(lock);
        let starts = starts(queue).len();
        let target = queue.path("target");
        let kinds: [(&str, &dyn Fn()); 5] = [
            ("of root", &|| fs::write(&path, "").unwrap()),
            ("a directory", &|| fs::create_dir(&path).unwrap()),
            ("a dangling link", &|| symlink(&target, &path).unwrap()),
            ("a FIFO", &|| {
                assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            }),
            ("of mode 000", &|| {
                fs::write(&path, "").unwrap();
                house.give(&path, 0o000);
            }),
        ];
        for (kind, make) in kinds {
            let _ = fs::remove_file(&path);
            // What has been told is told again only after an hour.
            let _ = fs::remove_file(queue.path("state/logs/findings.json"));
            make();
            if kind == "of root" {
                house.open_up(&path, 0o600);
            }
            let said = house.call(Who::Owner, [verb]);
            assert!([77, 78].contains(&said.code), "{lock} {kind}: {said:?}");
            assert!(said.err.contains(path.to_str().unwrap()), "{lock} {kind}: {said:?}");
            assert!(file.exists(), "{lock} {kind}: deleted without the lock");
            assert_eq!(queue.scratch("STARTS").len(), starts, "{lock} {kind}: exported without the lock");
            assert!(!target.exists(), "the link was followed");
            if path.is_dir() {
                fs::remove_dir(&path).unwrap();
            }
        }
        fs::remove_file(&path).unwrap();
        house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
        house.call(Who::Owner, ["sweep"]).code(0);
        assert_eq!(queue.published().len(), 1, "the old file went and the new one came");
        assert!(!file.exists());
        queue.assert_quiet();
    }
}

// CASES 68
#[test]
fn nothing_of_lasting_meaning_lies_in_a_temporary_directory() {
    let queue = Queue::new();
    queue.configure("[format.epub]\ncommand = [\"cp\", \"x\", \"{output}\"]\n");
    let shown = queue.run(["config", "show"]).code(0).out;
    for key in ["state_dir", "dir"] {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} = "))).expect("it is shown");
        assert!(!line.contains("/tmp") && !line.contains("/run"), "{line}");
    }
}

// CASES 68
#[test]
fn a_slot_file_taken_away_under_a_worker_makes_no_second_exporter() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    seconds(&queue, "2");
    queue.request("mark", "A");
    let first = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("mark", "A", "started");
    eventually("its exporter runs", || (queue.scratch("LOG").len() == 1).then_some(()));
    queue.request("mark", "B");
    fs::remove_file(queue.path("state/slots/default.0")).unwrap();
    let second = queue.spawn(["dispatch", "--wait"]);
    assert_eq!(sample(&queue, || is_drained(&queue)), 1);
    first.wait();
    second.wait();
    assert_eq!((queue.state("mark", "A"), queue.state("mark", "B")), ("ready".into(), "ready".into()));
    queue.dispatch().code(0).silent();
    queue.assert_quiet();
}

#[test]
fn a_worker_whose_slot_file_was_taken_away_begins_nothing_more() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    seconds(&queue, "2");
    queue.request("mark", "A");
    queue.run(["dispatch"]).code(0);
    eventually("its exporter runs", || (queue.scratch("LOG").len() == 1).then_some(()));
    queue.request("mark", "B");
    fs::remove_file(queue.path("state/slots/default.0")).unwrap();
    eventually("the worker has ended", || queue.workers().is_empty().then_some(()));
    assert_eq!((queue.state("mark", "A"), queue.state("mark", "B")), ("ready".into(), "queued".into()));
    queue.dispatch().code(0);
    assert_eq!(queue.state("mark", "B"), "ready");
    queue.assert_quiet();
}

#[test]
fn hundreds_of_files_that_cannot_be_deleted_do_not_keep_a_tick() {
    const FILES: u32 = 600;
    let house = House::new();
    let queue = &house.queue;
    house.call(Who::Owner, ["--quiet", "init"]).code(0);
    house.call(Who::Owner, ["request", "--format", "ok", "A"]).code(3);
    house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
    let shard = queue.path("cache/aa");
    fs::create_dir_all(&shard).unwrap();
    let mut sql = String::from("INSERT INTO runs (token, job_id, title, lang, font, format, options, filename, queue, client, meta, node, outcome,
         reason, detail, submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory, cpu_millis,
         present) VALUES ");
    for number in 0..FILES {
        let name = format!("old-en-default-aa{number:030x}.txt");
        let path = shard.join(&name);
        fs::write(&path, "old").unwrap();
        house.give(&path, 0o640);
        Queue::age(&path, 11 * MINUTE);
        let comma = if number == 0 { "" } else { ", " };
        sql.push_str(&format!(
            "{comma}('t{number}', 0, 'old', 'en', 'default', 'ok', '{{}}', '{name}', 'default', NULL, NULL, 'n', \
             'ready', NULL, NULL, 1, 1, 1, 1, 1, NULL, NULL, NULL, NULL, 1)"
        ));
    }
    sql.push_str(" RETURNING token");
    queue.sql(&sql);
    house.give(&shard, 0o555);
    let mut tick = house.command(Who::Owner, "022", ["dispatch"]);
    let mut tick = tick.stderr(std::process::Stdio::null()).spawn().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("the tick ends", || tick.try_wait().unwrap())
    }));
    let _ = tick.kill();
    assert_eq!(ended.expect("the tick ends").code(), Some(75));
    house.give(&shard, 0o750);
    house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
    assert_eq!(fs::read_dir(&shard).unwrap().count(), 0);
    queue.assert_quiet();
}
