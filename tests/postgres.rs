//! The queue on PostgreSQL, through the built program and a real server.

use std::fs;
use std::time::Duration;

use crate::harness::server::{self, Server};
use crate::harness::{Queue, eventually, now, text};

#[test]
fn a_title_goes_from_request_to_ready() {
    let queue = Queue::on(server::shared(), "");
    assert_eq!(queue.status("ok", "A Book")["state"], "absent");
    let asked = queue.request("ok", "A Book");
    assert_eq!((text(&asked["state"]), asked["position"].as_u64()), ("queued".to_owned(), Some(1)));
    queue.dispatch().code(0).silent();
    let ready = queue.status("ok", "A Book");
    assert_eq!(ready["state"], "ready");
    assert!(fs::metadata(text(&ready["path"])).is_ok_and(|meta| meta.len() > 0));
    assert!(!queue.path("state/queue.db").exists(), "nothing is kept in SQLite");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.sql("SELECT outcome FROM runs"), ["ready"]);
    queue.run(["check"]).code(0);
    queue.assert_quiet();
}

#[test]
fn failures_bases_and_pauses_are_as_on_sqlite() {
    let queue = Queue::on(server::shared(), "");
    queue.request("code1", "Broken");
    queue.dispatch().code(0);
    let failed = queue.status("code1", "Broken");
    assert_eq!((text(&failed["state"]), text(&failed["reason"])), ("failed_unknown".into(), "exit_nonzero".into()));
    queue.run(["pause", "--message", "back at noon"]).code(0);
    let waiting = queue.request("ok", "Later");
    assert_eq!((text(&waiting["reason"]), text(&waiting["message"])), ("paused".into(), "back at noon".into()));
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "queued");
    queue.run(["resume"]).code(0);
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "ready");
    queue.run(["cancel", "--format", "ok", "Never asked for"]).code(6);
    queue.assert_quiet();
}

#[test]
fn a_database_that_is_away_means_later_and_a_ready_file_is_served() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "Ready");
    queue.dispatch().code(0);
    server.down();
    assert_later_and_ready(&queue);
    server.up();
    queue.request("ok", "Other");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Other"), "ready");
    // Stopped, it accepts connections and answers nobody.
    let pid = server.pid();
    crate::harness::kill(pid, "STOP");
    assert_later_and_ready(&queue);
    crate::harness::kill(pid, "CONT");
    eventually("it answers again", || (queue.run(["status", "Nothing"]).code == 6).then_some(()));
}

fn assert_later_and_ready(queue: &Queue) {
    assert_eq!(queue.state("ok", "Ready"), "ready");
    assert_eq!(queue.request("ok", "Ready")["state"], "ready");
    for verb in ["request", "status"] {
        let begun = now();
        let said = queue.run(["--json", verb, "--format", "ok", "Not ready"]).code(75);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{verb} took {took:?}");
        assert_eq!(said.json()["error"]["code"], 75);
        assert!(!said.out.contains("host="), "{}", said.out);
    }
}

#[test]
fn ten_first_starts_at_once_make_one_schema() {
    let server = server::shared();
    let first = Queue::on(server, "");
    let starts: Vec<_> = (0..10).map(|n| first.spawn(["request", &format!("Book {n}"), "--format", "ok"])).collect();
    for start in starts {
        start.wait().code(3);
    }
    assert_eq!(first.sql("SELECT count(*) FROM jobs"), ["10"]);
    first.dispatch().code(0);
    assert_eq!(first.published().len(), 10);
}
