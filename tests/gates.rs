//! Gates: a queue starts nothing while the machine is short of something, says so, and goes on by itself.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{Queue, eventually};
use crate::people::Disk;

#[test]
fn a_job_that_is_held_says_why_and_starts_by_itself_when_the_gate_opens() {
    let queue = Queue::new();
    let disk = Disk::mount(queue.path("cache"), "20m");
    queue.reconfigure("min_free_disk = 0", "min_free_disk = \"10MB\"");
    queue.request("ok", "first");
    queue.dispatch().code(0).silent();
    disk.fill();
    queue.request("ok", "A");
    let mut dispatcher = queue.spawn(["dispatch", "--for", "120s"]);
    let held =
        eventually("A is held", || Some(queue.status("ok", "A")).filter(|status| status["reason"] == "low_disk"));
    assert_eq!(held["state"], "queued");
    let explained = queue.run(["explain", "A"]).code(3).out;
    assert!(explained.contains("it starts when there is room"), "{explained}");
    assert!(queue.run(["dispatch", "--dry-run"]).code(0).out.contains("queue default: held: low_disk"));
    disk.empty();
    queue.await_state("ok", "A", "ready");
    dispatcher.signal("TERM");
    eventually("the dispatcher ends", || dispatcher.is_over().then_some(()));
    queue.assert_quiet();
}

#[test]
fn a_machine_under_pressure_starts_nothing() {
    let kernel = fs::read_to_string("/proc/pressure/cpu");
    assert!(kernel.is_ok(), "this test needs a kernel that counts pressure: {kernel:?}");
    let queue = Queue::new();
    queue.reconfigure("min_free_disk = 0", "min_free_disk = 0\nmax_pressure = 5");
    let processors = std::thread::available_parallelism().expect("processors").get();
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("a shell");
    let mut spinners: Vec<_> = (0..4 * processors).map(|_| spin()).collect();
    queue.request("ok", "A");
    let held =
        eventually("A is held", || Some(queue.status("ok", "A")).filter(|status| status["reason"] == "high_load"));
    assert_eq!(held["state"], "queued");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "queued");
    for spinner in &mut spinners {
        spinner.kill().expect("it can be ended");
        spinner.wait().expect("it can be waited for");
    }
    queue.reconfigure("max_pressure = 5", "max_pressure = 0");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
}
