//! Deaths, stops and freezing: what is left behind by whoever did not end in good order, and how the next ticks mend it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{PROGRAM, Queue, eventually, kill, lives, now, text};
use crate::scripts::{add_format, alive, await_pids, held_locks, noted_pids, set_seconds, signal_together};

/// Far above what any of these takes, far below what a wait for something lost would.
const PROMPT: Duration = Duration::from_secs(20);

/// An exporter that notes when another for the same queue is alive beside it.
const ALONE: &str = "for p in $(cat $SCRATCH/PIDS); do is_alive $p && note BESIDE $p; done; note PIDS $$; \
                     sleep $(cat $SCRATCH/S); whole";

fn started_with(script: &str) -> Queue {
    let queue = Queue::new();
    add_format(&queue, "alone", "", script);
    set_seconds(&queue, "600");
    queue.request("alone", "A");
    queue
}

/// Ends every process of the queue, also those that start meanwhile.
fn kill_all(queue: &Queue) {
    eventually("all are gone", || {
        let processes = queue.processes();
        for process in &processes {
            process.slay();
        }
        processes.is_empty().then_some(())
    });
}

fn column(queue: &Queue, column: &str) -> String {
    queue.sql(&format!("SELECT {column} FROM jobs")).join(",")
}

fn slot_file(queue: &Queue) -> PathBuf {
    queue.path("state/slots/default.0")
}

fn slot_record(queue: &Queue) -> Value {
    let text = fs::read_to_string(slot_file(queue)).unwrap_or_default();
    serde_json::from_str(text.trim()).unwrap_or_default()
}

// CASES 1
#[test]
fn a_worker_outlives_its_dispatcher_and_is_not_doubled() {
    let queue = started_with(ALONE);
    set_seconds(&queue, "2");
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    tick.signal("KILL");
    tick.wait();
    for _ in 0..3 {
        queue.run(["dispatch"]).code(0).silent();
    }
    let status = queue.await_state("alone", "A", "ready");
    assert_eq!(status["interruptions"], 0);
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

// CASES 1
#[test]
fn an_exporter_that_outlives_its_worker_is_ended_before_the_next_one_starts() {
    let queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    let exporter = await_pids(&queue, 1)[0];
    queue.workers()[0].slay();
    eventually("the worker is gone", || queue.workers().is_empty().then_some(()));
    assert!(lives(exporter), "it is to outlive its worker");
    set_seconds(&queue, "0");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("alone", "A"), "ready");
    assert_eq!(queue.scratch("BESIDE"), Vec::<String>::new());
    assert_eq!(queue.scratch("STARTS"), ["A", "A"]);
    queue.assert_quiet();
}

// CASES 1
#[test]
fn a_patient_dispatcher_settles_what_its_killed_worker_left_at_once() {
    let queue = started_with(ALONE);
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    set_seconds(&queue, "0");
    queue.workers()[0].slay();
    tick.wait().code(0).silent();
    assert_eq!(queue.state("alone", "A"), "ready");
    assert_eq!(queue.scratch("BESIDE"), Vec::<String>::new());
    queue.assert_quiet();
}

// CASES 1
#[test]
fn an_exporter_killed_alone_is_the_books_failure_and_says_so() {
    let queue = started_with("note PIDS $$; exec sleep 600");
    let tick = queue.spawn(["dispatch", "--wait"]);
    let exporter = await_pids(&queue, 1)[0];
    tick.signal("KILL");
    kill(exporter, "KILL");
    let status = queue.await_state("alone", "A", "failed_unknown");
    assert_eq!(status["reason"], "killed_by_signal");
    queue.run(["dispatch"]).code(0).silent();
    assert_eq!(queue.state("alone", "A"), "failed_unknown");
    queue.assert_quiet();
}

// CASES 1
#[test]
fn after_the_death_of_everything_the_next_tick_begins_anew() {
    let queue = started_with(ALONE);
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    kill_all(&queue);
    tick.wait();
    assert_eq!(queue.state("alone", "A"), "started", "nobody was there to say anything else");
    // The others go on beside it.
    queue.request("ok", "B");
    set_seconds(&queue, "0");
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("alone", "A"), queue.state("ok", "B")), ("ready".into(), "ready".into()));
    assert_eq!(held_locks(&queue), Vec::<String>::new());
    queue.assert_quiet();
}

// CASES 13
#[test]
fn a_job_that_kills_its_worker_is_given_up_and_delays_no_other() {
    for suicide in ["kill -9 $PPID; exec sleep 600", "kill -9 $PPID; kill -9 0"] {
        let queue = Queue::new();
        queue.reconfigure("slots = 2", "slots = 1");
        add_format(&queue, "poison", "", suicide);
        for series in 1..=2 {
            queue.run(["request", "--retry", "--format", "poison", "POISON"]).code(3);
            let titles = ["B", "C", "D"].map(|title| format!("{title}{series}"));
            for title in &titles {
                queue.request("ok", title);
            }
            let mut ticks = 0;
            while queue.state("poison", "POISON") != "failed_unknown" {
                queue.dispatch().code(0).silent();
                ticks += 1;
                assert!(ticks <= 10, "it comes back for ever");
            }
            let status = queue.status("poison", "POISON");
            assert_eq!(
                (&status["reason"], &status["detail"]),
                (&json!("interrupted"), &json!("its worker died 4 times"))
            );
            assert_eq!(queue.scratch("STARTS").iter().filter(|title| *title == "POISON").count(), 4 * series);
            for title in &titles {
                assert_eq!(queue.state("ok", title), "ready");
            }
        }
        queue.assert_quiet();
    }
}

// CASES 18
#[test]
fn a_stopped_dispatcher_puts_its_jobs_back_before_it_ends() {
    for signal in ["TERM", "INT", "HUP"] {
        let queue = started_with(ALONE);
        let tick = queue.spawn(["dispatch", "--wait"]);
        await_pids(&queue, 1);
        tick.signal(signal);
        tick.wait().code(0).silent();
        assert_eq!(queue.state("alone", "A"), "queued", "{signal}");
        assert_eq!(column(&queue, "attempts || '/' || stops || '/' || interruptions"), "1/1/0");
        assert_eq!(alive(&noted_pids(&queue)), Vec::<i32>::new());
        queue.assert_quiet();
        set_seconds(&queue, "0");
        queue.dispatch().code(0).silent();
        assert_eq!(queue.state("alone", "A"), "ready");
        assert!(queue.published().len() == 1 && queue.scratch("BESIDE").is_empty());
        queue.assert_quiet();
    }
}

/// A signal to the whole group, as a terminal or a unit sends it, reaches workers and dispatcher together.
#[test]
fn a_dispatcher_that_is_told_to_stop_does_not_start_what_its_workers_have_just_put_back() {
    let mut queue = started_with(ALONE);
    // Time enough for a worker that should not have been started to begin its export.
    queue.set("EXPORT_QUEUE_FAULT", "dispatch.after_spawn=delay:2000");
    let tick = queue.spawn(["dispatch", "--for", "600s", "--wait"]);
    await_pids(&queue, 1);
    eventually("its tick is over", || queue.path("state/tick").exists().then_some(()));
    tick.signal("STOP");
    queue.workers().iter().for_each(|worker| worker.kill("TERM"));
    queue.await_state("alone", "A", "queued");
    eventually("its worker has ended", || queue.workers().is_empty().then_some(()));
    tick.signal("TERM");
    tick.signal("CONT");
    tick.wait().code(0).silent();
    assert_eq!(column(&queue, "attempts || '/' || stops || '/' || interruptions"), "1/1/0");
    assert_eq!(noted_pids(&queue).len(), 1, "it was started only to be stopped again");
    queue.assert_quiet();
}

// CASES 18
#[test]
fn a_second_stop_hurries_and_changes_nothing_else() {
    let queue = started_with("trap 'note ASKED once' TERM; note PIDS $$; while :; do sleep 600; done");
    queue.reconfigure("kill_grace = \"1s\"", "kill_grace = \"30s\"");
    let tick = queue.spawn(["dispatch", "--wait"]);
    let exporter = await_pids(&queue, 1)[0];
    let start = now();
    tick.signal("TERM");
    eventually("the exporter is asked to end", || queue.scratch("ASKED").pop());
    tick.signal("TERM");
    tick.wait().code(0).silent();
    assert!(start.elapsed() < PROMPT, "the second signal did not cut the grace of 30 s short: {:?}", start.elapsed());
    assert_eq!(queue.state("alone", "A"), "queued");
    assert_eq!(column(&queue, "stops"), "1");
    assert!(!lives(exporter));
    queue.assert_quiet();
}

// CASES 18
#[test]
fn a_shutdown_that_reaches_exporters_too_is_not_the_books_failure() {
    let queue = started_with("note PIDS $$; exec sleep $(cat $SCRATCH/S)");
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    // The exporter first: its worker sees a death by signal before it hears of the shutdown.
    let (exporters, workers) = (queue.exporters(), queue.workers());
    let dispatchers = queue.processes().into_iter().filter(|process| process.pid == tick.pid());
    let all: Vec<_> = exporters.into_iter().chain(workers).chain(dispatchers).collect();
    signal_together(&all, "TERM");
    tick.wait().code(0).silent();
    assert_eq!(queue.state("alone", "A"), "queued");
    assert_eq!(column(&queue, "stops"), "1");
    queue.assert_quiet();
}

// CASES 18
#[test]
fn a_failure_just_before_a_shutdown_is_taken_for_a_part_of_it() {
    let mut queue = started_with("exit 1");
    let hits = queue.path("HITS").display().to_string();
    queue.set("EXPORT_QUEUE_FAULT_HITS", &hits);
    queue.set("EXPORT_QUEUE_FAULT", "work.after_exit=delay:1000");
    queue.run(["dispatch"]).code(0).silent();
    eventually("the exporter has failed", || queue.scratch("HITS").pop());
    queue.workers().iter().for_each(|worker| worker.kill("TERM"));
    eventually("its worker has ended", || queue.workers().is_empty().then_some(()));
    assert_eq!(queue.state("alone", "A"), "queued");
    assert_eq!(column(&queue, "stops"), "1");
    queue.assert_quiet();
}

// CASES 18
#[test]
fn a_job_stopped_too_often_is_given_up() {
    let queue = started_with(ALONE);
    queue.sql("UPDATE jobs SET stops = 20");
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    tick.signal("TERM");
    tick.wait().code(0).silent();
    let status = queue.status("alone", "A");
    assert_eq!((&status["state"], &status["reason"]), (&json!("failed_unknown"), &json!("interrupted")));
    assert_eq!(status["detail"], "its worker was told to stop 21 times");
    queue.assert_quiet();
}

// CASES 48
#[test]
fn the_main_process_of_a_unit_stays_until_its_exporters_have_ended() {
    let queue = started_with(ALONE);
    set_seconds(&queue, "1");
    let mut call = Command::new("bash");
    call.args(["-c", "SYSTEMD_EXEC_PID=$$ exec \"$@\"", "bash", PROGRAM, "--config"]).arg(queue.path("config.toml"));
    assert!(call.arg("dispatch").stdin(Stdio::null()).status().expect("bash").success());
    // What it leaves behind is killed with the unit.
    kill_all(&queue);
    assert_eq!(queue.state("alone", "A"), "ready");
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

// CASES 48
#[test]
fn a_worker_that_is_killed_when_its_tick_has_ended_costs_one_start() {
    let queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    // As a unit that is no oneshot of its own does: everything left in it at once.
    kill_all(&queue);
    set_seconds(&queue, "0");
    eventually("the next ticks make it", || {
        queue.dispatch().code(0);
        (queue.state("alone", "A") == "ready").then_some(())
    });
    assert_eq!(queue.scratch("STARTS"), ["A", "A"]);
    queue.assert_quiet();
}

/// A run whose processes are all dead, with a row and a slot record that name them still.
fn dead_run() -> Queue {
    let queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    eventually("the record names the exporter", || slot_record(&queue)["leader"].is_object().then_some(()));
    kill_all(&queue);
    set_seconds(&queue, "0");
    queue
}

// CASES 49
#[test]
fn a_process_that_got_a_dead_ones_number_is_left_alone() {
    let mut stranger = Command::new("sleep").arg("1000").process_group(0).spawn().expect("sleep");
    let strange = i64::from(stranger.id());
    for pid in [strange, 1, i64::from(std::process::id()), 4_194_305] {
        for (boot, with_record) in [(None, true), (Some("another boot"), true), (None, false)] {
            let queue = dead_run();
            let mut record = slot_record(&queue);
            let other = json!({"pid": pid, "start": 1});
            (record["holder"], record["leader"]) = (other.clone(), other);
            if let Some(boot) = boot {
                record["boot"] = json!(boot);
            }
            let text = if with_record { record.to_string() } else { String::new() };
            fs::write(slot_file(&queue), format!("{text:1024}")).expect("the slot file can be written");
            queue.sql(&format!("UPDATE jobs SET worker = '{pid}.1', started_at = started_at - 7200000"));
            queue.dispatch().code(0).silent();
            assert_eq!(queue.state("alone", "A"), "ready", "{pid} {boot:?} {with_record}");
            queue.assert_quiet();
        }
    }
    assert!(lives(stranger.id().cast_signed()), "a foreign process was ended");
    stranger.kill().expect("our own child");
    stranger.wait().expect("our own child");
}

// CASES 49
#[test]
fn a_group_whose_leader_is_a_later_process_is_left_alone() {
    let queue = dead_run();
    let mut stranger = Command::new("sleep").arg("1000").process_group(0).spawn().expect("sleep");
    let mut record = slot_record(&queue);
    record["leader"] = json!({"pid": stranger.id(), "start": record["leader"]["start"]});
    fs::write(slot_file(&queue), format!("{:1024}", record.to_string())).expect("the slot file can be written");
    queue.dispatch().code(0).silent();
    assert!(lives(stranger.id().cast_signed()), "a foreign process was ended");
    assert_eq!(queue.state("alone", "A"), "ready");
    stranger.kill().expect("our own child");
    stranger.wait().expect("our own child");
    queue.assert_quiet();
}

#[test]
fn a_frozen_worker_is_ended_by_a_later_tick_and_its_job_exported() {
    let mut queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    let exporter = await_pids(&queue, 1)[0];
    let worker = queue.workers()[0].clone();
    worker.kill("STOP");
    queue.run(["dispatch"]).code(0).silent();
    assert!(worker.lives() && lives(exporter), "a moment's silence is no reason");
    set_seconds(&queue, "0");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    let said = queue.dispatch().code(0);
    assert!(said.err.contains("gives no sign of life"), "{said:?}");
    assert!(!worker.lives() && !lives(exporter));
    assert_eq!(queue.state("alone", "A"), "ready");
    assert_eq!(queue.scratch("BESIDE"), Vec::<String>::new());
    queue.assert_quiet();
}

/// Starts a tick whose worker waits at that moment, and freezes it there.
fn frozen_at(queue: &mut Queue, moment: &str, is_there: impl Fn(&Queue) -> bool) -> i32 {
    queue.set("EXPORT_QUEUE_FAULT", &format!("{moment}=delay:600000"));
    queue.run(["dispatch"]).code(0).silent();
    queue.set("EXPORT_QUEUE_FAULT", "");
    let worker = eventually("the worker is there", || queue.workers().into_iter().find(|_| is_there(queue)));
    worker.kill("STOP");
    worker.pid
}

#[test]
fn a_worker_frozen_before_its_claim_is_ended_by_a_later_tick() {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("ok", "A");
    let worker = frozen_at(&mut queue, "work.before_claim", |queue| slot_record(queue)["token"].is_string());
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.dispatch().code(0);
    assert!(!lives(worker));
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

/// A worker stands still between two jobs while a tick passes: its record names the one it ends and the one it begins.
fn passes_between_two_jobs(moment: &str) {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    set_seconds(&queue, "0");
    for title in ["A", "B"] {
        queue.request("mark", title);
    }
    queue.set("EXPORT_QUEUE_FAULT", &format!("{moment}=delay:4000"));
    queue.run(["dispatch"]).code(0).silent();
    queue.set("EXPORT_QUEUE_FAULT", "");
    let worker = eventually("the worker claims its second job", || {
        queue.workers().into_iter().find(|_| slot_record(&queue)["next"].is_string())
    });
    worker.kill("STOP");
    queue.run(["dispatch"]).code(0).silent();
    assert!(worker.lives(), "a worker of ours was taken for a stray");
    worker.kill("CONT");
    eventually("the worker has ended", || queue.workers().is_empty().then_some(()));
    assert_eq!(["A", "B"].map(|title| queue.state("mark", title)), ["ready", "ready"]);
    assert_eq!(queue.scratch("STARTS").len(), 2, "each was made once");
    assert_eq!(queue.sql("SELECT outcome, count(*) FROM runs GROUP BY 1"), ["ready|2"]);
    queue.dispatch().code(0).silent();
    queue.assert_quiet();
}

#[test]
fn a_tick_passes_a_worker_that_is_about_to_claim_its_next_job() {
    passes_between_two_jobs("work.before_claim");
}

#[test]
fn a_tick_passes_a_worker_that_has_just_claimed_its_next_job() {
    passes_between_two_jobs("finish.after_commit");
}

#[test]
fn a_worker_frozen_before_its_first_record_is_ended_by_later_ticks() {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("ok", "A");
    let worker = frozen_at(&mut queue, "work.before_record", |_| true);
    queue.run(["dispatch"]).code(0).silent();
    assert!(lives(worker), "a moment's silence is no reason");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.dispatch().code(0);
    assert!(!lives(worker));
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_dispatcher_is_not_ended_for_the_worker_that_it_handed_a_slot() {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_FAULT", "work.before_record=delay:600000");
    let mut patient = queue.spawn(["dispatch", "--wait"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    let worker = eventually("the worker is there", || queue.workers().pop());
    worker.kill("STOP");
    queue.run(["dispatch"]).code(0).silent();
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.run(["dispatch"]).code(0);
    assert!(!worker.lives());
    if patient.is_over() {
        patient.wait().code(0);
    } else {
        // At the end of the first it may have started another worker, which stands still where that one did.
        patient.signal("KILL");
        patient.wait();
    }
    eventually("nobody of it is left", || {
        queue.workers().iter().for_each(|worker| worker.kill("KILL"));
        queue.workers().is_empty().then_some(())
    });
    queue.dispatch().code(0);
    queue.await_state("ok", "A", "ready");
    queue.assert_quiet();
}

#[test]
fn a_tick_frozen_with_a_slot_in_hand_is_ended_by_a_later_one() {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_FAULT", "dispatch.before_spawn=delay:600000");
    let frozen = queue.spawn(["dispatch"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    eventually("it has the slot", || slot_file(&queue).exists().then(|| held_locks(&queue).pop()).flatten());
    frozen.signal("STOP");
    queue.run(["dispatch"]).code(0).silent();
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.dispatch().code(0);
    assert!(!lives(frozen.pid()));
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_frozen_holder_of_the_cache_lock_is_ended_and_publishing_goes_on() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    queue.set("EXPORT_QUEUE_FAULT", "sweep.before_unlink=delay:600000");
    let sweep = queue.spawn(["sweep", "--all", "--force"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    eventually("the sweep has the lock", || held_locks(&queue).pop());
    sweep.signal("STOP");
    queue.request("ok", "B");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.dispatch().code(0);
    assert!(!lives(sweep.pid()));
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("ready".into(), "ready".into()));
    assert_eq!(held_locks(&queue), Vec::<String>::new());
    queue.assert_quiet();
}

#[test]
fn whoever_is_frozen_in_a_transaction_is_ended_by_later_ticks() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_FAULT", "request.before_commit=delay:600000");
    queue.set("EXPORT_QUEUE_FAULT_HITS", &queue.path("HITS").to_string_lossy());
    let frozen = queue.spawn(["request", "--format", "ok", "B"]);
    queue.set("EXPORT_QUEUE_FAULT", "");
    eventually("it is in its transaction", || queue.scratch("HITS").pop());
    frozen.signal("STOP");
    queue.run(["dispatch"]).code(75);
    assert!(lives(frozen.pid()), "a moment's silence is no reason");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    let said = queue.dispatch().code(0);
    assert!(said.err.contains("gives no sign of life"), "{said:?}");
    assert!(!lives(frozen.pid()));
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("ready".into(), "absent".into()));
    queue.assert_quiet();
}

#[test]
fn a_cache_lock_that_was_seen_free_is_no_longer_suspected() {
    let queue = Queue::new();
    queue.run(["dispatch"]).code(0).silent();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot's id");
    let lock = queue.path("cache/.lock").display().to_string();
    let suspects = json!({"boot": boot.trim(), "seen": {&lock: ["Blank", 0]}});
    fs::write(queue.path("state/logs/suspects.json"), suspects.to_string()).expect("the note can be written");
    queue.run(["dispatch"]).code(0).silent();
    let left = fs::read_to_string(queue.path("state/logs/suspects.json")).expect("the note");
    assert!(!left.contains(&lock), "{left}");
    queue.assert_quiet();
}

#[test]
fn a_worker_frozen_while_it_publishes_blocks_nobody_for_long() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    let worker = frozen_at(&mut queue, "publish.before_rename", |queue| held_locks(queue).len() == 2);
    assert_eq!(queue.state("ok", "A"), "started");
    queue.request("ok", "B");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.dispatch().code(0);
    assert!(!lives(worker));
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("ready".into(), "ready".into()));
    queue.assert_quiet();
}

#[test]
fn a_started_job_is_cancelled_with_its_whole_tree() {
    let queue = Queue::new();
    queue.request("fork", "A");
    let tick = queue.spawn(["dispatch", "--wait"]);
    let pids = await_pids(&queue, 2);
    queue.run(["cancel", "--format", "fork", "A"]).code(0);
    tick.wait().code(0).silent();
    let status = queue.status("fork", "A");
    assert_eq!((&status["state"], &status["reason"]), (&json!("failed_unknown"), &json!("cancelled")));
    assert_eq!(alive(&pids), Vec::<i32>::new());
    queue.assert_quiet();
}

#[test]
fn a_queued_job_that_is_cancelled_is_gone_and_never_starts() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.request("ok", "B");
    queue.run(["cancel", "--format", "ok", "A"]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("absent".into(), "ready".into()));
    assert_eq!(queue.scratch("STARTS"), ["B"]);
    queue.assert_quiet();
}

#[test]
fn a_cancel_that_comes_while_the_worker_dies_is_kept() {
    let queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    let worker = queue.workers()[0].clone();
    worker.kill("STOP");
    queue.run(["cancel", "--format", "alone", "A"]).code(0);
    worker.slay();
    queue.dispatch().code(0).silent();
    let status = queue.status("alone", "A");
    assert_eq!((&status["state"], &status["reason"]), (&json!("failed_unknown"), &json!("cancelled")));
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

#[test]
fn a_refresh_that_is_cancelled_is_not_made_all_the_same() {
    let queue = Queue::new();
    set_seconds(&queue, "600");
    queue.run(["request", "--refresh", "--format", "slow", "A"]).code(3);
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 1);
    queue.run(["cancel", "--format", "slow", "A"]).code(0);
    let status = queue.await_state("slow", "A", "failed_unknown");
    assert_eq!(status["reason"], "cancelled");
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

#[test]
fn a_slot_names_each_run_before_a_row_does() {
    let mut queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    queue.reconfigure("hold = \"60s\"", "hold = \"60s\"\nmax_interruptions = 9");
    for title in ["A", "B"] {
        queue.request("ok", title);
    }
    let mut die_at = |moment: &str, attempts: &str| {
        queue.set("EXPORT_QUEUE_FAULT", &format!("{moment}=abort"));
        queue.run(["dispatch"]).code(0);
        let is_dead = || column(&queue, "attempts") == attempts && queue.workers().is_empty();
        eventually("its worker has died", || is_dead().then_some(()));
        let (record, token) = (slot_record(&queue), queue.sql("SELECT token FROM jobs WHERE token IS NOT NULL"));
        assert_eq!([text(&record["token"])], token[..], "{moment}: {record}");
        record
    };
    // Before and after the record that follows the claim.
    for (moment, attempts) in [("work.after_claim", "1,0"), ("work.before_spawn", "2,0")] {
        assert_eq!(die_at(moment, attempts)["next"], Value::Null);
    }
    // Until the end of one run and the claim of the next are committed, either may be the one that counts.
    let both = die_at("finish.before_commit", "3,0");
    assert!(both["next"].is_string(), "{both}");
    queue.set("EXPORT_QUEUE_FAULT", "");
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("ready".into(), "ready".into()));
    queue.assert_quiet();
}

#[test]
fn a_failing_job_delays_no_other() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    add_format(&queue, "passing", "backoff = [\"1h\"]", "exit 75");
    for format in ["passing", "die9", "none", "code1"] {
        queue.request(format, "A");
    }
    queue.request("ok", "B");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "B"), "ready");
    let waiting = queue.status("passing", "A");
    assert_eq!((&waiting["state"], &waiting["reason"]), (&json!("queued"), &json!("backing_off")));
    for format in ["die9", "none", "code1"] {
        assert_eq!(queue.state(format, "A"), "failed_unknown", "{format}");
    }
    queue.assert_quiet();
}

#[test]
fn at_the_end_of_its_work_window_a_worker_hands_its_slot_on() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1\nwork_window = \"1s\"");
    add_format(&queue, "brief", "", "note LOG start; note WORKERS $PPID; sleep 0.4; whole; note LOG end");
    let titles: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for title in &titles {
        queue.request("brief", title);
    }
    queue.dispatch().code(0).silent();
    for title in &titles {
        assert_eq!(queue.state("brief", title), "ready");
    }
    let mut workers = queue.scratch("WORKERS");
    workers.dedup();
    assert!(workers.len() > 1, "no successor took over: {workers:?}");
    let log = queue.scratch("LOG");
    assert!(log.chunks(2).all(|pair| pair == ["start", "end"]), "two at once: {log:?}");
    queue.assert_quiet();
}

/// Six titles of which two are being made.
fn busy_queue() -> Queue {
    let queue = Queue::new();
    add_format(&queue, "gated", "", "note PIDS $$; until [ -e $SCRATCH/$title ]; do sleep 0.02; done; whole");
    for title in ["A", "B", "C", "D", "E", "F"] {
        queue.request("gated", title);
    }
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 2);
    queue
}

fn open_gates(queue: &Queue, titles: &[&str]) {
    for title in titles {
        fs::write(queue.path(title), "").expect("a scratch file");
    }
}

#[test]
fn a_worker_above_the_reduced_number_of_slots_ends_after_its_export() {
    let queue = busy_queue();
    queue.reconfigure("slots = 2", "slots = 1");
    open_gates(&queue, &["A", "B"]);
    queue.await_state("gated", "B", "ready");
    await_pids(&queue, 3);
    eventually("one worker is left", || (queue.workers().len() == 1).then_some(()));
    queue.run(["dispatch"]).code(0).silent();
    assert_eq!(queue.workers().len(), 1);

    // Raised again, the next tick fills the slot.
    queue.reconfigure("slots = 1", "slots = 3");
    queue.run(["dispatch"]).code(0).silent();
    await_pids(&queue, 5);
    assert_eq!(queue.workers().len(), 3);
    open_gates(&queue, &["C", "D", "E", "F"]);
    queue.dispatch().code(0).silent();
    queue.await_state("gated", "F", "ready");
    queue.assert_quiet();
}

#[test]
fn a_worker_makes_what_can_be_made_only_since_it_began() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    add_format(&queue, "gated", "", "note PIDS $$; until [ -e $SCRATCH/$title ]; do sleep 0.02; done; whole");
    add_format(&queue, "sudden", "", "whole");
    fs::rename(queue.path("sudden.sh"), queue.path("moved.sh")).expect("its program goes");
    queue.request("gated", "A");
    queue.run(["dispatch"]).code(0);
    await_pids(&queue, 1);
    let began = now();
    fs::rename(queue.path("moved.sh"), queue.path("sudden.sh")).expect("its program comes");
    queue.request("sudden", "B");
    // For a second it is taken as known what can be made.
    eventually("that is over", || (began.elapsed() > Duration::from_millis(1100)).then_some(()));
    open_gates(&queue, &["A"]);
    eventually("its worker has ended", || queue.workers().is_empty().then_some(()));
    assert_eq!(queue.state("sudden", "B"), "ready");
    queue.assert_quiet();
}

#[test]
fn workers_whose_slots_were_taken_away_end_after_their_exports() {
    let queue = busy_queue();
    for slot in ["default.0", "default.1"] {
        fs::remove_file(queue.path("state/slots").join(slot)).expect("a slot");
    }
    open_gates(&queue, &["A", "B", "C", "D", "E", "F"]);
    eventually("no worker is left", || queue.workers().is_empty().then_some(()));
    assert_eq!(queue.scratch("STARTS").len(), 2);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.published().len(), 6);
    queue.assert_quiet();
}

#[test]
fn workers_of_a_paused_queue_end_after_their_exports() {
    let queue = busy_queue();
    queue.sql("INSERT INTO queues (name, paused_at) VALUES ('default', 1)");
    open_gates(&queue, &["A", "B", "C", "D", "E", "F"]);
    eventually("no worker is left", || queue.workers().is_empty().then_some(()));
    assert_eq!(queue.scratch("STARTS").len(), 2);
    queue.sql("DELETE FROM queues");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.published().len(), 6);
    queue.assert_quiet();
}

#[test]
fn a_dispatcher_that_goes_on_starts_what_is_asked_for_at_once() {
    let queue = Queue::new();
    let tick = queue.spawn(["dispatch", "--for", "60s"]);
    queue.request("ok", "first");
    queue.await_state("ok", "first", "ready");
    let mut waited = Duration::ZERO;
    for number in 0..10 {
        let title = format!("book {number}");
        queue.request("ok", &title);
        let start = now();
        eventually("it starts", || queue.scratch("STARTS").contains(&title).then_some(()));
        waited += start.elapsed();
        queue.await_state("ok", &title, "ready");
    }
    // Without a poke each waits half a second on average for the next look: five in all.
    assert!(waited < Duration::from_millis(2500), "ten starts took {waited:?}");
    tick.signal("TERM");
    tick.wait().code(0).silent();
    queue.assert_quiet();
}

#[test]
fn a_dispatcher_that_goes_on_ends_in_time_and_leaves_its_workers_to_work() {
    let queue = started_with(ALONE);
    let start = now();
    queue.run(["dispatch", "--for", "2s"]).code(0).silent();
    assert!(start.elapsed() >= Duration::from_secs(2) && start.elapsed() < PROMPT, "{:?}", start.elapsed());
    assert_eq!(queue.state("alone", "A"), "started");
    queue.run(["cancel", "--format", "alone", "A"]).code(0);
    queue.await_state("alone", "A", "failed_unknown");
    queue.assert_quiet();
}

#[test]
fn the_record_of_a_worker_says_what_it_does() {
    let queue = started_with(ALONE);
    queue.run(["dispatch"]).code(0).silent();
    let exporter = await_pids(&queue, 1)[0];
    let record = eventually("the record names the exporter", || {
        Some(slot_record(&queue)).filter(|record| record["leader"].is_object())
    });
    assert_eq!(record["leader"]["pid"], exporter);
    assert_eq!(record["holder"]["pid"], queue.workers()[0].pid);
    assert_eq!(text(&record["token"]), column(&queue, "token"));
    queue.run(["cancel", "--format", "alone", "A"]).code(0);
    queue.await_state("alone", "A", "failed_unknown");
    queue.assert_quiet();
    assert_eq!(slot_record(&queue), Value::Null);
}
