//! Surroundings that change under a queue at work: clocks, file systems, and a database that is put back to an earlier day.
//! Full disks and other users' locks are in `database.rs` and `locks.rs`, limits of processes and descriptors in `process.rs`.

use std::fs;

use crate::harness::{Queue, eventually};
use crate::people::Disk;
use crate::scripts::{add_format, await_pids, set_seconds};

/// A day and a bit, in seconds.
const DAY: &str = "90000";

#[test]
fn a_clock_that_jumps_a_day_ahead_and_back_loses_no_job_and_holds_none_up() {
    let mut queue = Queue::new();
    for title in ["before", "failed before"] {
        queue.request(if title == "before" { "ok" } else { "code1" }, title);
    }
    queue.dispatch().code(0).silent();
    queue.request("ok", "waits");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", DAY);
    assert_eq!(queue.state("ok", "before"), "absent", "it is a day old");
    queue.request("ok", "of tomorrow");
    queue.request("code1", "failed tomorrow");
    queue.dispatch().code(0);
    for title in ["waits", "of tomorrow"] {
        assert_eq!(queue.state("ok", title), "ready", "{title}");
    }
    queue.request("ok", "waits since tomorrow");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "0");
    // What is dated ahead is not ready; a failure dated ahead holds nobody off; a job submitted ahead is due.
    assert_eq!(queue.state("ok", "of tomorrow"), "absent");
    assert_eq!(queue.request("code1", "failed tomorrow")["state"], "queued");
    queue.request("ok", "of tomorrow");
    queue.request("ok", "after");
    queue.dispatch().code(0);
    for title in ["of tomorrow", "waits since tomorrow", "after"] {
        let status = queue.status("ok", title);
        assert_eq!(status["state"], "ready", "{status}");
    }
    assert_eq!(queue.sql("SELECT count(*) FROM jobs WHERE state = 0"), ["0"]);
    queue.assert_quiet();
}

#[test]
fn a_job_that_runs_while_the_clock_is_set_keeps_its_own_time_limit() {
    for jump in [DAY, "-90000"] {
        let mut queue = Queue::new();
        let body = "note LOG start; until [ -e $SCRATCH/go ]; do sleep 0.05; done; whole; note LOG end";
        add_format(&queue, "held", "", body);
        queue.request("held", "A");
        queue.run(["dispatch"]).code(0).silent();
        eventually("it runs", || queue.scratch("LOG").pop());
        queue.set("EXPORT_QUEUE_TEST_CLOCK", jump);
        for _ in 0..3 {
            queue.run(["dispatch"]).code(0);
            assert_eq!(queue.status("held", "A")["state"], "started", "{jump}");
        }
        queue.set("EXPORT_QUEUE_TEST_CLOCK", "0");
        fs::write(queue.path("go"), "").expect("a file");
        queue.await_state("held", "A", "ready");
        assert_eq!(queue.scratch("LOG"), ["start", "end"], "{jump}: it ran once, from start to end");
        queue.assert_quiet();
    }
}

#[test]
fn a_database_put_back_to_an_earlier_copy_begins_nothing_twice_and_invents_nothing() {
    let queue = Queue::new();
    set_seconds(&queue, "1");
    queue.request("slow", "running then");
    queue.request("ok", "waiting then");
    queue.reconfigure("slots = 2", "slots = 1");
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    let copy = queue.path("copy.db").display().to_string();
    queue.sql(&format!("VACUUM INTO '{copy}'"));
    queue.await_state("slow", "running then", "ready");
    queue.await_state("ok", "waiting then", "ready");
    queue.request("ok", "asked since");
    queue.dispatch().code(0);
    // One that still looks whether anything is due would make the next book before it is lost.
    eventually("every worker has ended", || queue.workers().is_empty().then_some(()));
    queue.request("ok", "lost with it");
    for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
        // The last two are there only while somebody has the database open, or was killed.
        let _ = fs::remove_file(queue.path("state").join(name));
    }
    fs::copy(&copy, queue.path("state/queue.db")).expect("the copy is put back");
    let starts = queue.scratch("STARTS").len();
    for title in ["asked since", "waiting then"] {
        assert_eq!(queue.state("ok", title), "ready", "files answer, whatever the database knows");
    }
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("STARTS").len(), starts, "what was fulfilled since is not made again");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.state("ok", "lost with it"), "absent");
    queue.request("ok", "lost with it");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "lost with it"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_cache_that_is_removed_under_a_running_export_costs_a_truthful_answer_and_no_more() {
    let queue = Queue::new();
    add_format(&queue, "held", "", "note PIDS $$; until [ -e $SCRATCH/go ]; do sleep 0.05; done; whole");
    queue.request("held", "A");
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    fs::remove_dir_all(queue.path("cache")).expect("the cache goes");
    fs::write(queue.path("go"), "").expect("a file");
    eventually("its worker has ended", || queue.workers().is_empty().then_some(()));
    let state = eventually("it is settled", || {
        queue.dispatch();
        let status = queue.status("held", "A");
        ["ready", "failed_unknown"].contains(&status["state"].as_str()?).then_some(status)
    });
    if state["state"] == "failed_unknown" {
        assert_eq!(state["reason"], "exit_nonzero", "its directory was gone: {state}");
        queue.run(["--exit-zero", "retry", "--format", "held", "A"]).code(0);
        queue.dispatch().code(0).silent();
    }
    assert_eq!(queue.state("held", "A"), "ready");
    queue.assert_quiet();
}

/// The words are the system's own; a file system with quotas is not to be had on every machine.
#[test]
fn an_exporter_beyond_its_quota_fails_for_want_of_space() {
    let queue = Queue::new();
    let body = "python3 -c 'import errno, os; raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))'";
    add_format(&queue, "greedy", "", body);
    queue.request("greedy", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("greedy", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &"no_space".into()), "{status}");
    queue.assert_quiet();
}

#[test]
fn a_full_disk_behind_a_good_end_is_told_as_one() {
    let queue = Queue::new();
    add_format(&queue, "brave", "", "echo 'writing the book: No space left on device' >&2; exit 0");
    queue.request("brave", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("brave", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &"no_space".into()), "{status}");
    queue.assert_quiet();
}

#[test]
fn a_disk_that_an_exporter_filled_without_a_word_is_told() {
    let queue = Queue::new();
    let _disk = Disk::mount(queue.path("cache"), "3m");
    add_format(&queue, "mute", "", "cat /dev/zero 2>/dev/null >$output; exit 1");
    queue.request("mute", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("mute", "A");
    assert_eq!((&status["reason"], &status["detail"]), (&"no_space".into(), &"exit 1".into()), "{status}");
    queue.assert_quiet();
}

#[test]
fn a_cache_that_cannot_be_written_blames_no_book() {
    for (size, how) in [("4m", "ro"), ("4m,nr_inodes=300", "")] {
        let queue = Queue::new();
        let disk = Disk::mount(queue.path("cache"), size);
        queue.request("ok", "before");
        queue.dispatch().code(0).silent();
        let filling = |number| queue.path(format!("cache/.work/filling{number}"));
        let count = if how.is_empty() {
            (0..300).take_while(|number| fs::write(filling(*number), "").is_ok()).count()
        } else {
            0
        };
        if how == "ro" {
            disk.remount("ro");
        }
        queue.request("ok", "A");
        for _ in 0..5 {
            let tick = queue.dispatch();
            assert!([1, 75, 77, 78].contains(&tick.code), "{how:?}: the operator is told: {tick:?}");
            queue.sql("UPDATE jobs SET due_at = 1 WHERE due_at IS NOT NULL RETURNING id");
        }
        assert_eq!(queue.state("ok", "before"), "ready", "what is there is served");
        let status = queue.status("ok", "A");
        assert_eq!((&status["state"], &status["interruptions"]), (&"queued".into(), &0.into()), "{how:?}: {status}");
        if how == "ro" {
            disk.remount("rw");
        }
        (0..count).for_each(|number| fs::remove_file(filling(number)).expect("it was made"));
        eventually("A is exported", || {
            queue.dispatch();
            (queue.state("ok", "A") == "ready").then_some(())
        });
        queue.assert_quiet();
        drop(disk);
    }
}
