//! The database: used by many at once and by several users, lost, broken, replaced, on a full disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{Queue, Running, eventually, now, text};
use crate::people::{Disk, GROUP, House, OWNER, Who};

fn remove_sidecars(queue: &Queue) {
    for sidecar in ["state/queue.db-wal", "state/queue.db-shm"] {
        fs::remove_file(queue.path(sidecar)).expect("it stays when the last process closes");
    }
}

fn publish(queue: &Queue, title: &str) -> PathBuf {
    queue.request("ok", title);
    queue.dispatch().code(0);
    PathBuf::from(text(&queue.status("ok", title)["path"]))
}

/// Brings everything into the one file, so that a test can break it.
fn checkpoint(queue: &Queue) {
    queue.sql("PRAGMA wal_checkpoint(TRUNCATE)");
}

// CASES 9
#[test]
fn many_at_once_are_all_served() {
    const CALLERS: usize = 20;
    const EACH: usize = 8;
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    let dispatch = queue.spawn(["dispatch", "--for", "60s"]);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let queue = &queue;
            scope.spawn(move || {
                for n in 0..EACH {
                    let said = queue.run(["request", "--format", "ok", &format!("book {caller} {n}")]);
                    assert!([0, 3, 4].contains(&said.code), "{said:?}");
                    assert_eq!(said.err, "");
                }
            });
        }
        for poller in 0..5 {
            let queue = &queue;
            scope.spawn(move || {
                for n in 0..EACH * 3 {
                    let said = queue.run(["status", "--format", "ok", &format!("book {poller} {}", n % EACH)]);
                    assert!([0, 3, 4, 6].contains(&said.code), "{said:?}");
                    assert_eq!(said.err, "");
                }
            });
        }
    });
    eventually("all are exported", || {
        (queue.sql("SELECT count(*) FROM runs WHERE outcome = 'ready'") == [(CALLERS * EACH).to_string()]).then_some(())
    });
    dispatch.signal("TERM");
    let said = dispatch.wait();
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", ""));
    let mut starts = queue.scratch("STARTS");
    starts.sort();
    starts.dedup();
    assert_eq!(starts.len(), CALLERS * EACH);
    assert_eq!(queue.published().len(), CALLERS * EACH);
    queue.assert_quiet();
}

// CASES 9
#[test]
fn a_lock_that_somebody_keeps_is_a_reason_to_try_later() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    let mut other = rusqlite::Connection::open(queue.path("state/queue.db")).unwrap();
    let held = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    assert_eq!(queue.state("ok", "B"), "absent", "reading waits for nobody");
    let said = queue.run(["request", "--format", "ok", "B"]).code(75);
    assert!(said.err.contains("the database is busy; try again later"), "{said:?}");
    queue.run(["request", "--format", "ok", "ready"]).code(0);
    drop(held);
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"], "nothing was half done");
    assert_eq!(queue.request("ok", "B")["state"], "queued");
    queue.dispatch().code(0).silent();
    assert!(file.exists());
    queue.assert_quiet();
}

// CASES 10
#[test]
fn no_user_shuts_another_out_whatever_the_umask() {
    for umask in ["022", "077"] {
        let house = House::new();
        house.call_with(Who::Owner, umask, ["--quiet", "init"]).code(0);
        // Each of them is the first to need the files beside the database.
        for first in [Who::Stranger, Who::Front, Who::Root, Who::Owner] {
            remove_sidecars(&house.queue);
            let title = format!("book of {first:?}");
            let status = house.call_with(first, umask, ["status", "--format", "ok", &title]);
            if first == Who::Stranger {
                status.code(77).says(&[&format!("user {OWNER}"), &GROUP.to_string()]);
            } else {
                status.code(6);
            }
            house.call_with(Who::Front, umask, ["request", "--format", "ok", &title]).code(3);
            house.call_with(Who::Front, umask, ["status", "--format", "ok", &title]).code(3);
            house.call_with(Who::Owner, umask, ["dispatch", "--wait"]).code(0).says(&[]);
            let said = house.call_with(Who::Front, umask, ["--json", "status", "--format", "ok", &title]).code(0);
            let path = text(&serde_json::from_str::<serde_json::Value>(&said.out).unwrap()["path"]);
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (OWNER, GROUP, 0o640), "{path}");
        }
        house.queue.assert_quiet();
    }
}

// CASES 10
#[test]
fn only_the_owner_runs_exports_and_others_are_told_who_that_is() {
    let house = House::new();
    house.call(Who::Owner, ["--quiet", "init"]).code(0);
    house.call(Who::Front, ["request", "--format", "ok", "A"]).code(3);
    for who in [Who::Front, Who::Stranger] {
        for verb in [&["dispatch"][..], &["dispatch", "--wait"], &["sweep"], &["sweep", "--all", "--force"]] {
            house.call(who, verb).code(77).says(&[&format!("user {OWNER}"), "state"]);
        }
    }
    for verb in ["request", "status"] {
        house
            .call(Who::Stranger, [verb, "--format", "ok", "A"])
            .code(77)
            .says(&[&format!("user {OWNER}"), &format!("group {GROUP}")]);
    }
    assert_eq!(house.queue.sql("SELECT title, state FROM jobs"), ["A|0"]);
    house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
    house.call(Who::Front, ["status", "--format", "ok", "A"]).code(0);
    house.queue.assert_quiet();
}

// CASES 10
#[test]
fn what_root_makes_belongs_to_the_owner() {
    let house = House::new();
    house.call_with(Who::Root, "077", ["--quiet", "init"]).code(0);
    house.call_with(Who::Root, "077", ["request", "--format", "ok", "A"]).code(3);
    house.call_with(Who::Root, "077", ["dispatch", "--wait"]).code(0);
    house.call_with(Who::Root, "077", ["request", "--format", "code1", "B"]).code(3);
    house.call_with(Who::Root, "077", ["dispatch", "--wait"]).code(0);
    house.call_with(Who::Root, "077", ["sweep"]).code(0);
    let mut seen = 0;
    for entry in ["state", "cache"].iter().flat_map(|dir| walkdir::WalkDir::new(house.queue.path(dir))) {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (OWNER, GROUP), "{}", entry.path().display());
        assert_eq!(meta.mode() & 0o007, 0, "{} is open to all", entry.path().display());
        seen += 1;
    }
    assert!(seen > 10);
    house.call(Who::Front, ["request", "--format", "ok", "C"]).code(3);
    house.call(Who::Owner, ["dispatch", "--wait"]).code(0);
    house.call(Who::Front, ["status", "--format", "ok", "C"]).code(0);
    house.queue.assert_quiet();
}

#[test]
fn a_front_end_creates_no_queue() {
    let house = House::new();
    house.call(Who::Front, ["status", "--format", "ok", "A"]).code(6);
    house.call(Who::Front, ["request", "--format", "ok", "A"]).code(78).says(&["export-queue init"]);
    assert_eq!(fs::read_dir(house.queue.path("state")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(house.queue.path("cache")).unwrap().count(), 0);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_named() {
    let house = House::new();
    house.queue.reconfigure("state_dir = \"state\"", "state_dir = \"closed/state\"");
    let closed = house.queue.path("closed");
    fs::create_dir(&closed).unwrap();
    house.open_up(&closed, 0o755);
    let state = closed.join("state");
    for verb in [&["request", "--format", "ok", "A"][..], &["dispatch"], &["init", "--quiet"], &["sweep"]] {
        house.call(Who::Owner, verb).code(77).says(&[&state.to_string_lossy()]);
    }
    house.call(Who::Owner, ["status", "--format", "ok", "A"]).code(6);
    assert!(!state.exists());
}

// CASES 77
#[test]
fn a_reader_that_may_not_write_is_answered_the_same_alone_and_in_company() {
    let house = House::new();
    fs::write(house.queue.path("S"), "600").unwrap();
    house.call(Who::Owner, ["--quiet", "init"]).code(0);
    house.call(Who::Owner, ["request", "--format", "slow", "A"]).code(3);
    let state = house.queue.path("state");
    house.open_up(&state, 0o2750);
    for file in ["queue.db", "queue.db-wal", "queue.db-shm"] {
        house.open_up(&state.join(file), 0o640);
    }
    house.call(Who::Front, ["status", "--format", "slow", "A"]).code(3);
    let refused = house.call(Who::Front, ["request", "--format", "slow", "B"]).code(77);
    refused.says(&["queue.db", "may not be written by this user", "group"]);
    let mut dispatch = house.command(Who::Owner, "022", ["dispatch", "--wait"]).spawn().unwrap();
    house.queue.await_state("slow", "A", "started");
    house.call(Who::Front, ["status", "--format", "slow", "A"]).code(4);
    house.call(Who::Owner, ["cancel", "--format", "slow", "A"]).code(0);
    assert!(dispatch.wait().unwrap().success());
    house.call(Who::Front, ["status", "--format", "slow", "A"]).code(5);
    // Somebody has deleted what stands beside the database, and the reader may not make it.
    remove_sidecars(&house.queue);
    house.call(Who::Front, ["status", "--format", "slow", "A"]).code(77).says(&["queue.db", "group"]);
    house.call(Who::Owner, ["request", "--format", "ok", "C"]).code(3);
    house.open_up(&state.join("queue.db"), 0o600);
    let refused = house.call(Who::Front, ["status", "--format", "slow", "A"]).code(77);
    refused.says(&["queue.db", "cannot be opened", "group"]);
    house.queue.assert_quiet();
}

// CASES 41
#[test]
fn twelve_processes_may_be_the_first() {
    for round in 0..30 {
        let queue = Queue::new();
        let titles: Vec<_> = (0..10).map(|n| format!("book {n}")).collect();
        let requests: Vec<Running> =
            titles.iter().map(|title| queue.spawn(["request", "--format", "ok", title])).collect();
        let ticks = [queue.spawn(["dispatch", "--wait"]), queue.spawn(["dispatch", "--wait"])];
        for request in requests {
            let said = request.wait();
            assert!([0, 3, 4].contains(&said.code), "round {round}: {said:?}");
            assert_eq!(said.err, "");
        }
        for tick in ticks {
            tick.wait().code(0).silent();
        }
        queue.dispatch().code(0).silent();
        assert_eq!(queue.published().len(), 10, "round {round}");
        queue.assert_quiet();
    }
}

/// Every verb says that the database cannot be used, and a ready file is served all the same; adopting it recovers.
#[track_caller]
fn assert_unusable_until_adopted(queue: &Queue, file: &Path, words: &[&str]) {
    let starts = queue.scratch("STARTS").len();
    for verb in [
        &["request", "--format", "ok", "new"][..],
        &["status", "--format", "ok", "new"],
        &["dispatch"],
        &["sweep"],
        &["list"],
        &["queues"],
        &["cancel", "--format", "ok", "new"],
        &["history"],
    ] {
        let said = queue.run(verb).code(78);
        let words = words.iter().chain(&["state/queue.db"]);
        words.for_each(|word| assert!(said.err.contains(word), "{word:?} is not in {said:?}"));
        assert_eq!(said.out, "");
    }
    assert_eq!(queue.state("ok", "ready"), "ready");
    queue.run(["request", "--format", "ok", "ready"]).code(0);
    assert_eq!(fs::read_to_string(file).unwrap(), "a good book: ready\n");
    assert_eq!(queue.scratch("STARTS").len(), starts, "an exporter was started");
    queue.run(["--quiet", "init", "--adopt"]).code(0);
    assert_eq!(queue.state("ok", "ready"), "ready");
    assert_eq!(queue.request("ok", "new")["state"], "queued");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "new"), "ready");
    queue.assert_quiet();
}

// CASES 81
#[test]
fn noise_in_the_database_is_noticed() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    queue.request("ok", "waiting");
    checkpoint(&queue);
    let path = queue.path("state/queue.db");
    let mut bytes = fs::read(&path).unwrap();
    let noise = (0..).map(|n: u32| n.wrapping_mul(2_654_435_761).to_le_bytes()[2]);
    bytes.iter_mut().skip(4096).zip(noise).for_each(|(byte, noise)| *byte = noise);
    fs::write(&path, bytes).unwrap();
    assert_unusable_until_adopted(&queue, &file, &["is not a usable database"]);
}

// CASES 81
#[test]
fn a_database_of_length_0_is_noticed() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    checkpoint(&queue);
    fs::write(queue.path("state/queue.db"), "").unwrap();
    assert_unusable_until_adopted(&queue, &file, &["is not a usable database", "init --adopt"]);
}

// CASES 81
#[test]
fn a_database_cut_short_is_noticed() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    checkpoint(&queue);
    let database = fs::File::options().write(true).open(queue.path("state/queue.db")).unwrap();
    database.set_len(8192).unwrap();
    assert_unusable_until_adopted(&queue, &file, &["is not a usable database"]);
}

// CASES 81
#[test]
fn a_file_that_is_no_database_is_noticed() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    checkpoint(&queue);
    fs::write(queue.path("state/queue.db"), "Dear diary,\n".repeat(1000)).unwrap();
    assert_unusable_until_adopted(&queue, &file, &["is not a usable database"]);
}

// CASES 81
#[test]
fn a_database_of_another_program_is_refused_and_kept() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    fs::remove_file(queue.path("state/queue.db")).unwrap();
    queue.sql("CREATE TABLE recipes (name TEXT)");
    assert_unusable_until_adopted(&queue, &file, &["it is the database of another program"]);
    let kept = fs::read_dir(queue.path("state")).unwrap().flatten();
    assert!(kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("queue.db.broken-")));
}

// CASES 81
#[test]
fn a_database_deleted_while_a_worker_uses_it_is_not_made_anew() {
    let queue = Queue::new();
    fs::write(queue.path("S"), "1").unwrap();
    let file = publish(&queue, "ready");
    queue.request("slow", "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("slow", "A", "started");
    for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
        fs::remove_file(queue.path("state").join(name)).unwrap();
    }
    dispatch.wait();
    assert!(!queue.path("state/queue.db").exists(), "silently made anew");
    assert_unusable_until_adopted(&queue, &file, &["is missing", "init --adopt"]);
    assert_eq!(queue.state("slow", "A"), "ready", "its file was complete");
}

// CASES 81
#[test]
fn the_database_of_another_queue_is_refused_until_it_is_adopted() {
    let (queue, other) = (Queue::new(), Queue::new());
    let file = publish(&queue, "ready");
    other.request("ok", "from elsewhere");
    checkpoint(&queue);
    checkpoint(&other);
    fs::copy(other.path("state/queue.db"), queue.path("state/queue.db")).unwrap();
    assert_unusable_until_adopted(&queue, &file, &["belongs to another queue"]);
    assert_eq!(queue.state("ok", "from elsewhere"), "ready", "its rows were kept");
}

#[test]
fn the_cache_of_another_queue_is_refused() {
    let (queue, other) = (Queue::new(), Queue::new());
    let file = publish(&other, "theirs");
    let text = format!("dir = \"{}\"", other.path("cache").display());
    queue.request("ok", "A");
    queue.reconfigure("dir = \"cache\"", &text);
    for verb in [&["dispatch"][..], &["sweep", "--all", "--force"], &["request", "--format", "ok", "A"]] {
        let said = queue.run(verb).code(78);
        assert!(said.err.contains("belongs to another queue"), "{said:?}");
    }
    assert!(file.exists());
}

#[test]
fn a_schema_that_is_too_new_is_left_alone_and_one_that_allows_us_is_used() {
    let queue = Queue::new();
    let file = publish(&queue, "ready");
    queue.sql("PRAGMA user_version = 99");
    assert_eq!(queue.request("ok", "A")["state"], "queued", "version 1 may still write");
    queue.sql("UPDATE meta SET value = '99' WHERE name = 'oldest_writer' RETURNING value");
    for verb in [&["request", "--format", "ok", "B"][..], &["status", "--format", "ok", "B"], &["dispatch"]] {
        let said = queue.run(verb).code(78);
        assert!(said.err.contains("schema 99") && said.err.contains("newer export-queue"), "{said:?}");
    }
    assert_eq!(queue.state("ok", "ready"), "ready");
    assert!(file.exists());
    assert_eq!(queue.sql("SELECT title FROM jobs"), ["A"]);
    assert_eq!(queue.sql("PRAGMA user_version"), ["99"]);
}

#[test]
fn a_state_directory_that_is_read_only_says_so_and_loses_nothing() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("state"), "4m");
    let file = publish(&queue, "ready");
    queue.request("ok", "A");
    disk.remount("ro");
    let said = queue.run(["request", "--format", "ok", "B"]);
    assert!([75, 77, 78].contains(&said.code) && said.err.contains("state"), "{said:?}");
    assert_eq!(queue.run(["--json", "status", "--format", "ok", "ready"]).code(0).json()["state"], "ready");
    let said = queue.run(["dispatch", "--wait"]);
    assert!([75, 77, 78].contains(&said.code) && said.err.contains("state"), "{said:?}");
    assert!(file.exists() && queue.scratch("STARTS") == ["ready"]);
    disk.remount("rw");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_full_disk_under_the_database_means_try_later_and_loses_nothing() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("state"), "3m");
    let file = publish(&queue, "ready");
    queue.request("ok", "before");
    disk.fill();
    let mut accepted = Vec::new();
    // What is written goes into the log beside the database first, which may have room for a while.
    let refused = (0..2000).map(|n| format!("book {n}")).find_map(|title| {
        let said = queue.run(["request", "--format", "ok", &title]);
        if said.code == 3 {
            accepted.push(title);
            return None;
        }
        Some(said)
    });
    let refused = refused.expect("the disk is full at some time").code(75);
    assert!(refused.err.contains("the disk is full"), "{refused:?}");
    assert_eq!(queue.run(["--json", "request", "--format", "ok", "ready"]).code(0).json()["state"], "ready");
    let tick = queue.run(["dispatch", "--wait"]);
    assert!([0, 75].contains(&tick.code), "{tick:?}");
    disk.empty();
    queue.dispatch().code(0);
    accepted.push("before".to_owned());
    for title in accepted {
        assert_eq!(queue.state("ok", &title), "ready", "{title}");
    }
    assert_eq!(queue.request("ok", "after")["state"], "queued");
    queue.dispatch().code(0).silent();
    assert!(file.exists());
    queue.assert_quiet();
}

#[test]
fn an_exporter_on_a_full_disk_fails_for_want_of_space() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("cache"), "3m");
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    queue.configure(&format!(
        "{text}[format.big]\nextension = \"txt\"\ncommand = [\"dd\", \"if=/dev/zero\", \"of={{output}}\", \"bs=64k\", \"count=80\"]\n"
    ));
    let file = publish(&queue, "ready");
    queue.request("big", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("big", "A");
    assert_eq!((text_of(&status, "state"), text_of(&status, "reason")), ("failed_unknown".into(), "no_space".into()));
    assert!(queue.work_dirs().is_empty(), "what it had written is gone");
    assert_eq!(queue.published(), [file]);
    // With no room at all for the private directory's files, the book waits or fails, and goes on when there is room.
    disk.fill();
    queue.request("ok", "B");
    let tick = queue.dispatch();
    assert!([0, 75].contains(&tick.code), "{tick:?}");
    let status = queue.status("ok", "B");
    assert!(status["state"] == "queued" || status["reason"] == "no_space", "{status}");
    disk.empty();
    queue.run(["request", "--retry", "--format", "ok", "B"]);
    let start = now();
    eventually("B is exported", || {
        queue.dispatch();
        (queue.state("ok", "B") == "ready").then_some(())
    });
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(queue.state("ok", "ready"), "ready");
    queue.assert_quiet();
}

/// Ticks on a machine that lacks something; the book waits for it and is not to blame.
fn assert_waits_without_blame(queue: &Queue, format: &str, title: &str) {
    for _ in 0..5 {
        let tick = queue.dispatch();
        assert!([0, 75].contains(&tick.code), "{tick:?}");
        queue.sql("UPDATE jobs SET due_at = 1 WHERE due_at IS NOT NULL RETURNING id");
    }
    let status = queue.status(format, title);
    assert_eq!((&status["state"], &status["interruptions"]), (&"queued".into(), &0.into()), "{status}");
    assert_eq!(queue.run(["dispatch"]).code(0).out, "");
}

#[test]
fn a_state_directory_without_room_for_a_log_blames_no_book() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("state"), "8m,nr_inodes=60");
    publish(&queue, "ready");
    let more = (0..100).map(|n| queue.path(format!("state/logs/filling{n}")));
    let filling: Vec<_> = more.take_while(|path| fs::write(path, "").is_ok()).collect();
    assert!(filling.len() < 60);
    queue.request("ok", "A");
    assert_waits_without_blame(&queue, "ok", "A");
    for path in filling {
        fs::remove_file(path).unwrap();
    }
    eventually("A is exported", || {
        queue.dispatch();
        (queue.state("ok", "A") == "ready").then_some(())
    });
    queue.assert_quiet();
    drop(disk);
}

#[test]
fn a_cache_without_room_for_the_copy_of_a_base_blames_no_book() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("cache"), "4m");
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    queue.configure(&format!(
        "{text}[format.big]\nextension = \"txt\"\ncommand = [\"dd\", \"if=/dev/zero\", \"of={{output}}\", \"bs=64k\", \"count=16\"]\n\
         [format.small]\nextension = \"txt\"\nbase = \"big\"\ncommand = [\"cp\", \"/etc/hostname\", \"{{output}}\"]\n"
    ));
    queue.request("big", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("big", "A"), "ready");
    disk.fill();
    queue.request("small", "A");
    assert_waits_without_blame(&queue, "small", "A");
    disk.empty();
    eventually("A is exported", || {
        queue.dispatch();
        (queue.state("small", "A") == "ready").then_some(())
    });
    queue.assert_quiet();
    drop(disk);
}

fn text_of(status: &serde_json::Value, name: &str) -> String {
    text(&status[name])
}
