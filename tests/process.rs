//! Exporters and their trees: what they inherit, how they end, and what ends them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{PROGRAM, Queue, eventually, lives, text};
use crate::scripts::{add_format, alive, await_pids, held_locks, noted_pids, set_seconds, set_timeout, timed};

/// Far above what any of these takes, far below what a wait for a forgotten process would.
const PROMPT: Duration = Duration::from_secs(20);

// CASES 2
#[test]
fn an_exporter_inherits_its_log_and_nothing_else() {
    let queue = Queue::new();
    add_format(&queue, "look", "", "readlink /proc/$$/fd/* >>$SCRATCH/FDS; whole");
    queue.request("look", "A");
    let (extra, lock) = (queue.path("extra"), queue.path("cron.lock"));
    let shell = format!("exec 9<>{} 7<>{}; flock 7; \"$@\"", extra.display(), lock.display());
    let mut call = Command::new("bash");
    call.args(["-c", &shell, "bash", PROGRAM, "--config"]).arg(queue.path("config.toml")).args(["dispatch", "--wait"]);
    assert!(call.stdin(Stdio::null()).status().expect("bash").success());

    let log = |target: &str| target.starts_with(&*queue.path("state/logs/").to_string_lossy());
    let script = queue.path("look.sh").display().to_string();
    let open = queue.scratch("FDS");
    assert!(open.iter().any(|target| log(target)), "{open:?}");
    let strange: Vec<_> =
        open.iter().filter(|target| !log(target) && !["/dev/null", &script].contains(&target.as_str())).collect();
    assert!(strange.is_empty(), "the exporter held {strange:?}");
    assert_eq!(queue.state("look", "A"), "ready");
    queue.assert_quiet();
}

// CASES 2
#[test]
fn a_worker_holds_nothing_of_its_caller() {
    let queue = Queue::new();
    queue.request("slow", "A");
    let (extra, lock) = (queue.path("extra"), queue.path("cron.lock"));
    let shell = format!("exec 9<>{} 7<>{}; flock 7; \"$@\"", extra.display(), lock.display());
    let mut call = Command::new("bash");
    call.args(["-c", &shell, "bash", PROGRAM, "--config"]).arg(queue.path("config.toml")).arg("dispatch");
    assert!(call.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("bash").success());
    await_pids(&queue, 1);
    // The tick has ended and its lock with it, although its worker goes on.
    let workers = queue.workers();
    assert_eq!(workers.len(), 1);
    let fds = fs::read_dir(format!("/proc/{}/fd", workers[0].pid)).expect("the worker's descriptors").flatten();
    let open: Vec<PathBuf> = fds.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    assert!(!open.contains(&extra) && !open.contains(&lock), "{open:?}");
    let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().expect("flock");
    assert!(free.success(), "cron's lock is held on: {open:?}");
    queue.run(["cancel", "--format", "slow", "A"]).code(0);
    queue.await_state("slow", "A", "failed_unknown");
    queue.assert_quiet();
}

// CASES 2, 19
#[test]
fn an_exporter_that_leaves_a_child_behind_is_ready_at_its_own_end() {
    let queue = Queue::new();
    let body = "(note PIDS $BASHPID; exec sleep 300) & until [ -s $SCRATCH/PIDS ]; do :; done; whole";
    add_format(&queue, "leaver", "", body);
    queue.request("leaver", "A");
    let (said, took) = timed(|| queue.dispatch());
    said.code(0).silent();
    assert!(took < PROMPT, "the child was waited for: {took:?}");
    assert_eq!(queue.state("leaver", "A"), "ready");
    let pids = noted_pids(&queue);
    assert_eq!((pids.len(), alive(&pids)), (1, vec![]));
    assert_eq!(held_locks(&queue), Vec::<String>::new());
    let (_, took) = timed(|| (queue.dispatch().code(0).silent(), queue.run(["sweep"]).code(0)));
    assert!(took < PROMPT, "{took:?}");
    queue.assert_quiet();
}

// CASES 3
#[test]
fn a_time_limit_ends_the_whole_tree_before_the_slot_is_given_on() {
    for kind in ["fork", "away"] {
        let queue = Queue::new();
        add_format(
            &queue,
            "witness",
            "",
            "for p in $(cat $SCRATCH/PIDS); do is_alive $p && note ALIVE $p; done; whole",
        );
        set_timeout(&queue, "1s");
        queue.reconfigure("slots = 2", "slots = 1");
        queue.request(kind, "A");
        queue.request("witness", "B");
        queue.dispatch().code(0).silent();
        let status = queue.status(kind, "A");
        assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_timeout".into(), "timed_out".into()));
        assert!(noted_pids(&queue).len() >= 2, "{kind} did not start its children");
        assert_eq!(queue.scratch("ALIVE"), Vec::<String>::new(), "{kind}");
        assert_eq!(queue.state("witness", "B"), "ready");
        assert_eq!(queue.published().len(), 1);
        queue.assert_quiet();
    }
}

// CASES 4
#[test]
fn whoever_holds_the_streams_a_time_limit_is_in_time() {
    for escape in ["", "setsid "] {
        let queue = Queue::new();
        let body = format!("echo 'page 7 of 9'; {escape}bash -c 'echo $$ >>$SCRATCH/PIDS; exec sleep 600' & sleep 600");
        add_format(&queue, "talker", "timeout = \"1s\"", &body);
        queue.request("talker", "A");
        let (said, took) = timed(|| queue.dispatch());
        said.code(0).silent();
        assert!(took < PROMPT, "{took:?}");
        let status = queue.status("talker", "A");
        assert_eq!(status["state"], "failed_timeout");
        assert_eq!(status["detail"], "time limit of 1s: page 7 of 9");
        let pids = noted_pids(&queue);
        assert_eq!((pids.len(), alive(&pids)), (1, vec![]));
        queue.assert_quiet();
    }
}

// CASES 6
#[test]
fn a_book_whose_exporter_was_killed_can_be_asked_for_again_at_once() {
    let queue = Queue::new();
    add_format(&queue, "moody", "", "[ -e $SCRATCH/CURED ] || kill -9 $$; whole");
    queue.request("moody", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("moody", "A");
    assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_unknown".into(), "killed_by_signal".into()));
    assert_eq!(status["detail"], "signal 9 (killed, perhaps for want of memory)");
    let hold = status["retry_after_seconds"].as_u64().expect("when to ask again");
    assert!(hold <= 60, "{status}");
    assert_eq!(held_locks(&queue), Vec::<String>::new());

    fs::write(queue.path("CURED"), "").expect("a scratch file");
    queue.run(["request", "--format", "moody", "--retry", "A"]).code(3);
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["1"]);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("moody", "A"), "ready");
    queue.assert_quiet();
}

// CASES 11
#[test]
fn an_exporter_that_never_ends_delays_no_other() {
    let queue = Queue::new();
    set_seconds(&queue, "3600");
    add_format(&queue, "hung", "timeout = \"3s\"", "whole; note PIDS $$; exec sleep 3600");
    queue.request("hung", "A");
    let mut tick = queue.spawn(["dispatch", "--for", "30s", "--wait"]);
    await_pids(&queue, 1);
    for title in ["B", "C", "D"] {
        queue.request("ok", title);
        queue.await_state("ok", title, "ready");
    }
    assert_eq!(queue.state("hung", "A"), "started", "the others waited for it");
    let status = queue.await_state("hung", "A", "failed_timeout");
    assert_eq!(status["detail"], "time limit of 3s");
    assert!(!tick.is_over());
    tick.signal("TERM");
    tick.wait().silent();
    // It had written a whole file, but never said that it was done.
    assert_eq!(queue.published().len(), 3);
    queue.assert_quiet();
}

// CASES 11
#[test]
fn there_is_no_export_without_a_time_limit() {
    let queue = Queue::new();
    set_timeout(&queue, "0s");
    queue.run(["request", "--format", "ok", "A"]).code(78);
    queue.run(["dispatch"]).code(78);
}

// CASES 12
#[test]
fn a_death_by_signal_is_named_and_never_taken_for_success() {
    let queue = Queue::new();
    add_format(&queue, "wrapped", "", "bash -c 'kill -9 $$'; exit $?");
    add_format(&queue, "hidden", "", "bash -c 'kill -9 $$'; exit 0");
    add_format(&queue, "crashed", "", "printf half >$output; kill -SEGV $$");
    add_format(&queue, "aborted", "", "ulimit -c 0; kill -ABRT $$");
    add_format(&queue, "spent", "", "ulimit -c 0; kill -XCPU $$");
    add_format(&queue, "ended", "", "kill -TERM $$");
    let killed = "signal 9 (killed, perhaps for want of memory)";
    let table = [
        ("die9", "killed_by_signal", killed.to_owned()),
        ("half9", "killed_by_signal", killed.to_owned()),
        ("crashed", "killed_by_signal", "signal 11 (crashed)".to_owned()),
        ("aborted", "killed_by_signal", "signal 6 (aborted)".to_owned()),
        ("spent", "killed_by_signal", "signal 24 (processor time limit)".to_owned()),
        ("ended", "killed_by_signal", "signal 15 (asked to end)".to_owned()),
        ("wrapped", "exit_nonzero", format!("exit 137 (probably {killed})")),
        ("hidden", "output_missing", "exit 0, but".to_owned()),
    ];
    for (format, _, _) in &table {
        queue.request(format, "A");
    }
    queue.dispatch().code(0).silent();
    for (format, reason, detail) in table {
        let status = queue.status(format, "A");
        assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_unknown".into(), reason.into()));
        let said = text(&status["detail"]);
        assert!(said.starts_with(&detail), "{format}: {said}");
    }
    for (format, code, signal) in [("crashed", Value::Null, 11.into()), ("wrapped", 137.into(), Value::Null)] {
        let run = queue.run(["--json", "history", "--format", format, "A"]).code(0).json();
        assert_eq!((&run["exit_code"], &run["signal"]), (&code, &signal), "{format}");
    }
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}

#[test]
fn which_failures_pass_is_the_formats_to_say() {
    let queue = Queue::new();
    let gone = "transient_output = [\"(?i)gateway time-?out\"]";
    let table = [
        ("usual", "", "exit 75", true),
        ("named", "transient_exit = [3]", "exit 3", true),
        ("unnamed", "transient_exit = [3]", "exit 75", false),
        ("said", gone, "echo '504 Gateway Timeout' >&2; exit 3", true),
        ("unsaid", gone, "echo '404 Not Found' >&2; exit 3", false),
        ("killed", gone, "echo '504 Gateway Timeout' >&2; kill -9 $$", false),
    ];
    for (format, keys, body, _) in table {
        add_format(&queue, format, &format!("backoff = [\"1h\"]\n{keys}"), body);
        queue.request(format, "A");
    }
    queue.dispatch().code(0).silent();
    for (format, _, _, passes) in table {
        let status = queue.status(format, "A");
        assert_eq!(status["state"], if passes { "queued" } else { "failed_unknown" }, "{format}: {status}");
        assert_eq!(status["reason"] == "backing_off", passes, "{format}: {status}");
    }
    queue.assert_quiet();
}

#[test]
fn as_many_processes_as_are_allowed_are_allowed() {
    let queue = Queue::new();
    add_format(&queue, "lone", "max_processes = 1", "whole; exec sleep 0.5");
    queue.request("lone", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("lone", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn what_a_format_accepts_counts_for_its_command_alone() {
    let queue = Queue::new();
    for step in ["precheck", "verify"] {
        let keys = format!("accept_exit = [0, 1]\n{step} = [\"sh\", \"-c\", \"echo no good; exit 1\"]");
        add_format(&queue, step, &keys, "whole; exit 1");
        queue.request(step, step);
    }
    queue.dispatch().code(0).silent();
    let table =
        [("precheck", "exit_nonzero", "exit 1: no good"), ("verify", "output_invalid", "verify: exit 1: no good")];
    for (step, reason, detail) in table {
        let status = queue.status(step, step);
        let told = ["state", "reason", "detail"].map(|name| text(&status[name]));
        assert_eq!(told, ["failed_unknown", reason, detail], "{step}");
    }
    assert_eq!(queue.scratch("STARTS"), ["verify"], "nothing is made of what is not there");
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}

#[test]
fn what_a_good_exporter_said_stands_in_the_history() {
    let queue = Queue::new();
    add_format(&queue, "open", "", "echo 'two images were left out' >&2; whole");
    for format in ["open", "ok"] {
        queue.request(format, "A");
    }
    queue.dispatch().code(0).silent();
    for (format, detail) in [("open", "two images were left out".into()), ("ok", Value::Null)] {
        let run = queue.run(["--json", "history", "--format", format, "A"]).code(0).json();
        assert_eq!((&run["outcome"], &run["detail"]), (&"ready".into(), &detail));
    }
    queue.assert_quiet();
}

#[test]
fn an_exporter_is_as_nice_as_its_format_says() {
    let queue = Queue::new();
    add_format(&queue, "nice", "nice = 19", "until [ $(nice) = 19 ]; do sleep 0.01; done; whole");
    set_timeout(&queue, "20s");
    queue.request("nice", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("nice", "A"), "ready");
    queue.assert_quiet();
}

// CASES 42
#[test]
fn a_deaf_exporter_is_killed_after_the_grace_period() {
    let queue = Queue::new();
    set_timeout(&queue, "1s");
    queue.request("noterm", "A");
    let (said, took) = timed(|| queue.dispatch());
    said.code(0).silent();
    assert!(took >= Duration::from_secs(2) && took < PROMPT, "limit and grace are 2 s, it took {took:?}");
    let status = queue.status("noterm", "A");
    assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_timeout".into(), "timed_out".into()));
    assert_eq!(status["detail"], "time limit of 1s; it ignored TERM and was ended by KILL");
    assert_eq!(alive(&noted_pids(&queue)), Vec::<i32>::new());
    queue.assert_quiet();
}

// CASES 43
#[test]
fn children_in_sessions_of_their_own_are_ended_with_the_exporter() {
    let queue = Queue::new();
    set_timeout(&queue, "2s");
    queue.request("away", "A");
    let tick = queue.spawn(["dispatch", "--wait"]);
    // The leader, its child in another session, and a grandchild in a third whose parent is gone.
    let pids = await_pids(&queue, 3);
    assert_eq!(alive(&pids), pids);
    tick.wait().code(0).silent();
    assert_eq!(queue.state("away", "A"), "failed_timeout");
    assert_eq!(alive(&pids), Vec::<i32>::new());
    queue.assert_quiet();
}

// CASES 43
#[test]
fn children_that_left_their_group_are_found_after_the_death_of_their_worker() {
    let queue = Queue::new();
    queue.request("away", "A");
    queue.run(["dispatch"]).code(0).silent();
    let pids = await_pids(&queue, 3);
    for worker in queue.workers() {
        worker.slay();
    }
    set_seconds(&queue, "0");
    queue.dispatch().code(0).silent();
    assert_eq!(alive(&pids), Vec::<i32>::new());
    assert_eq!(queue.state("away", "A"), "ready");
    queue.assert_quiet();
}

// CASES 55
#[test]
fn callers_never_wait_for_an_export() {
    let queue = Queue::new();
    queue.request("slow", "A");
    let tick = queue.spawn(["dispatch", "--wait"]);
    await_pids(&queue, 1);
    let ((), took) = timed(|| {
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        assert_eq!(queue.request("slow", "A")["state"], "started");
                        assert_eq!(queue.state("slow", "A"), "started");
                    }
                });
            }
        });
    });
    assert!(took < PROMPT, "a hundred calls took {took:?}");
    queue.run(["cancel", "--force", "--format", "slow", "A"]).code(0);
    tick.wait().code(0).silent();
    assert_eq!(queue.scratch("STARTS"), ["A"]);
    queue.assert_quiet();
}

// CASES 55
#[test]
fn a_book_that_fails_is_tried_once_a_hold_however_often_it_is_asked_for() {
    let mut queue = Queue::new();
    for minute in 0..3 {
        queue.set("EXPORT_QUEUE_TEST_CLOCK", &(minute * 61).to_string());
        for _ in 0..5 {
            queue.request("code1", "A");
            queue.dispatch().code(0).silent();
            let status = queue.status("code1", "A");
            assert_eq!(status["state"], "failed_unknown");
            assert!(status["retry_after_seconds"].as_u64().expect("when to ask again") <= 60);
        }
        assert_eq!(queue.scratch("STARTS").len(), minute + 1, "after {minute} minutes");
    }
    queue.assert_quiet();
}

// CASES 62
#[test]
fn a_flood_of_messages_is_cut_to_its_end() {
    let queue = Queue::new();
    add_format(&queue, "chatter", "timeout = \"2s\"\nmax_log = \"64KB\"", "exec yes $'warn\\e[31m\\x01ing' >&2");
    for title in ["A", "B", "C"] {
        queue.request("chatter", title);
    }
    queue.dispatch().code(0).silent();
    for title in ["A", "B", "C"] {
        let status = queue.status("chatter", title);
        assert_eq!(status["state"], "failed_timeout");
        let detail = text(&status["detail"]);
        assert!(detail.contains("warn") && detail.len() < 4096, "{} bytes", detail.len());
        assert!(!detail.contains(char::is_control), "{detail}");
    }
    let logs = fs::read_dir(queue.path("state/logs")).expect("the logs").flatten();
    let logs = logs.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "log"));
    let sizes: Vec<u64> = logs.map(|entry| entry.metadata().expect("a log").size()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|size| *size <= 64_000), "{sizes:?}");
    queue.assert_quiet();
}

// CASES 63
#[test]
fn an_exporter_beyond_its_memory_limit_is_ended_and_no_other() {
    let queue = Queue::new();
    add_format(&queue, "greedy", "max_memory = \"200MB\"", "head -c 8G /dev/zero | tail");
    queue.request("greedy", "A");
    queue.request("ok", "B");
    queue.dispatch().code(0).silent();
    let status = queue.status("greedy", "A");
    assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_unknown".into(), "out_of_memory".into()));
    assert_eq!(queue.state("ok", "B"), "ready");
    queue.assert_quiet();
}

// CASES 63
#[test]
fn the_exporter_is_the_preferred_victim_when_memory_runs_out() {
    let queue = Queue::new();
    queue.request("slow", "A");
    // From a shell whose own mark is lower, whatever the tests run under.
    let mut call = Command::new("choom");
    call.args(["-n", "300", "--", PROGRAM, "--config"]).arg(queue.path("config.toml")).arg("dispatch");
    assert!(call.stdin(Stdio::null()).status().expect("choom").success());
    let exporter = await_pids(&queue, 1)[0];
    let adjusted = |pid: i32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a process");
    eventually("the exporter is marked", || (adjusted(exporter).trim() == "800").then_some(()));
    let worker = queue.workers()[0].pid;
    assert_eq!(adjusted(worker).trim(), "300");
    queue.run(["cancel", "--format", "slow", "A"]).code(0);
    queue.await_state("slow", "A", "failed_unknown");
    queue.assert_quiet();
}

/// Dispatches under limits of the caller's.
fn dispatch_under(queue: &Queue, limits: &[&str]) -> std::process::Output {
    let mut call = Command::new("prlimit");
    call.args(limits).arg(PROGRAM).arg("--config").arg(queue.path("config.toml")).args(["dispatch", "--wait"]);
    call.stdin(Stdio::null()).output().expect("prlimit")
}

// CASES 86
#[test]
fn a_file_size_limit_ends_the_exporter_and_not_the_queue() {
    let queue = Queue::new();
    add_format(&queue, "big", "", "exec head -c 4000000 /dev/zero >$output");
    queue.request("big", "A");
    let output = dispatch_under(&queue, &["--fsize=2000000"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let status = queue.status("big", "A");
    assert_eq!((text(&status["state"]), text(&status["reason"])), ("failed_unknown".into(), "killed_by_signal".into()));
    assert_eq!(status["detail"], "signal 25 (file size limit)");
    queue.assert_quiet();
}

// CASES 86
#[test]
fn under_limits_that_leave_no_room_to_work_a_job_stays_queued() {
    for limit in ["--fsize=1000", "--fsize=20000", "--nofile=4", "--nofile=10", "--nofile=14"] {
        let queue = Queue::new();
        queue.request("ok", "A");
        let output = dispatch_under(&queue, &[limit]);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 75 | 77 | 78)), "{limit}: {output:?}");
        let state = queue.state("ok", "A");
        assert_eq!(state, if code == Some(0) { "ready" } else { "queued" }, "{limit}: {output:?}");
        queue.dispatch().code(0).silent();
        assert_eq!(queue.state("ok", "A"), "ready");
        queue.assert_quiet();
    }
}

// CASES 86
#[test]
fn a_user_who_may_start_no_more_processes_keeps_its_jobs_queued() {
    // Behind walls the first that cannot be started is the trial of them.
    for walls in ["", "no_network = true\nread_only = true"] {
        let queue = Queue::new();
        queue.reconfigure("kill_grace = \"1s\"", &format!("kill_grace = \"1s\"\n{walls}"));
        queue.request("ok", "A");
        // The limit does not bind root, so the queue belongs to somebody whom nobody else is.
        let owner = 50_000 + std::process::id() % 10_000;
        fs::set_permissions(queue.path(""), fs::Permissions::from_mode(0o777)).expect("the directory is ours");
        let all = Command::new("chown").arg("-R").arg(owner.to_string()).arg(queue.path("")).status().expect("chown");
        assert!(all.success());
        let output = dispatch_under(&queue, &["--nproc=1"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert_eq!(queue.state("ok", "A"), "queued");
        queue.dispatch().code(0);
        assert_eq!(queue.state("ok", "A"), "ready");
        queue.assert_quiet();
    }
}

// CASES 86
#[test]
fn a_processor_time_limit_of_the_callers_ends_the_exporter() {
    let queue = Queue::new();
    add_format(&queue, "busy", "", "while :; do :; done");
    queue.request("busy", "A");
    let output = dispatch_under(&queue, &["--cpu=2"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(queue.status("busy", "A")["reason"], "killed_by_signal");
    queue.assert_quiet();
}

/// A file system that is frozen: whoever begins to write to it sleeps, and KILL does not end it before the thaw.
struct Ice(PathBuf);

impl Ice {
    /// A new one in the queue's directory, and a format `icy` whose exporter writes to it.
    fn new(queue: &Queue) -> Self {
        let (image, dir) = (queue.path("ice.img"), queue.path("ice"));
        fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("an image");
        fs::create_dir(&dir).expect("a directory");
        let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        assert!(done(Command::new("mkfs.ext4").arg("-q").arg(&image)), "this test needs mkfs.ext4");
        let is_mounted = done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir));
        assert!(is_mounted, "this test needs root and a loop device");
        let ice = Self(dir);
        assert!(done(Command::new("fsfreeze").arg("--freeze").arg(&ice.0)), "it can be frozen");
        add_format(queue, "icy", "", "note PIDS $$; : >$SCRATCH/ice/x; whole");
        ice
    }

    fn thaw(&self) {
        // One that is thawed already is what was wanted.
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).stderr(Stdio::null()).status();
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        self.thaw();
        // Lazily: a failed test may leave processes that are ended only after this.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Waits until the exporter sleeps so that nothing wakes it.
fn await_icebound(queue: &Queue) -> i32 {
    let exporter = await_pids(queue, 1)[0];
    eventually("it sleeps uninterruptibly", || {
        let stat = fs::read_to_string(format!("/proc/{exporter}/stat")).expect("the exporter is there");
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D')).then_some(())
    });
    exporter
}

// CASES 87
#[test]
fn a_process_that_does_not_die_keeps_its_slot_and_no_more() {
    let queue = Queue::new();
    let ice = Ice::new(&queue);
    set_timeout(&queue, "2s");
    queue.request("icy", "A");
    let tick = queue.spawn(["dispatch", "--wait"]);
    let exporter = await_icebound(&queue);
    for title in ["B", "C"] {
        queue.request("ok", title);
        queue.await_state("ok", title, "ready");
    }
    let status = queue.await_state("icy", "A", "failed_timeout");
    assert_eq!(status["reason"], "would_not_die");
    assert!(text(&status["detail"]).starts_with("signal 9 did not end"), "{status}");
    let (_, took) = timed(|| tick.wait());
    assert!(took < PROMPT, "dispatch waits for what does not die: {took:?}");
    assert!(lives(exporter));

    // Its slot stays taken over any number of ticks: beside it there is room for one.
    set_seconds(&queue, "0");
    for title in ["D", "E", "F"] {
        queue.request("mark", title);
    }
    let said = queue.dispatch().code(75);
    assert!(said.err.contains("stays taken"), "{said:?}");
    for title in ["D", "E", "F"] {
        assert_eq!(queue.state("mark", title), "ready");
    }
    let marks: Vec<_> = queue.scratch("LOG").iter().map(|line| line[..5].to_owned()).collect();
    assert_eq!(marks, ["start", "end D", "start", "end E", "start", "end F"]);
    queue.run(["request", "--retry", "--format", "icy", "A"]).code(5);
    assert_eq!(queue.status("icy", "A")["reason"], "would_not_die");

    ice.thaw();
    eventually("the thawed process dies", || (!lives(exporter)).then_some(()));
    // It was asked for meanwhile, so it starts afresh.
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("icy", "A"), "ready");
    queue.assert_quiet();
}

// CASES 87
#[test]
fn what_does_not_die_with_its_worker_keeps_its_slot_until_it_is_gone() {
    let queue = Queue::new();
    let ice = Ice::new(&queue);
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("icy", "A");
    queue.run(["dispatch"]).code(0).silent();
    let exporter = await_icebound(&queue);
    queue.workers()[0].slay();
    queue.request("ok", "B");
    let said = queue.dispatch().code(75);
    assert!(said.err.contains(&format!("KILL does not end process {exporter}")), "{said:?}");
    assert_eq!(queue.status("icy", "A")["reason"], "would_not_die");
    // Known by now, it holds up no further tick, and is not told again.
    let (said, took) = timed(|| queue.dispatch());
    said.code(75).silent();
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(queue.state("ok", "B"), "queued");
    assert_eq!(queue.status("ok", "B")["reason"], "no_free_slot");

    ice.thaw();
    eventually("the thawed process dies", || (!lives(exporter)).then_some(()));
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "B"), "ready");
    assert_eq!(queue.status("icy", "A")["reason"], "would_not_die");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs WHERE token IS NOT NULL"), ["0"]);
    queue.assert_quiet();
}
