//! Order under load, counted and not timed: who floods waits for others, nobody waits for ever, and a slot that is free is
//! taken at once. `cargo bench --bench steering` prints the same on real exports, with times.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use export_queue::clock::from_millis;
use export_queue::job::{Job, Outcome, Run};
use export_queue::key::Key;
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{Ask, Claim, QueueBounds, Store};
use tempfile::TempDir;

use crate::harness::{Queue, eventually};

#[path = "../benches/steering/day.rs"]
mod day;

/// What a step of priority is worth, in seconds (`rules::rank`).
const STEP: i64 = 120;

/// A time, in seconds after some moment.
fn at(secs: i64) -> DateTime<Utc> {
    from_millis(1_700_000_000_000 + secs * 1000)
}

/// A queue without exporters: a run takes the time that the test gives it.
struct Still {
    store: Sqlite,
    runs: u32,
    _dir: TempDir,
}

impl Still {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("queue.db");
        std::fs::write(&path, "").expect("an empty file");
        Self { store: Sqlite::open(&path, "the id").expect("a queue"), runs: 0, _dir: dir }
    }

    fn ask(&mut self, ask: &Ask, now: DateTime<Utc>) {
        self.store.request(ask, now).expect("a request");
    }

    /// Claims and publishes the next job: its title.
    fn run(&mut self, now: DateTime<Utc>) -> String {
        self.runs += 1;
        let claim = Claim {
            queue: "default".into(),
            formats: vec![("epub".into(), Duration::from_secs(60))],
            token: format!("t{}", self.runs),
            node: "node".into(),
            slot: "default.0".into(),
            worker: "7.8".into(),
            max_running: 0,
            lease: Duration::from_secs(90),
        };
        let job: Job = self.store.claim(&claim, now).expect("a claim").expect("something is due");
        let run = Run { published_at: Some(now), ..job.run(Outcome::Ready, now) };
        self.store.finish(&run, "node").expect("an end");
        job.key.title
    }

    /// How many jobs run before that one, a job each so many seconds.
    fn before(&mut self, title: &str, from: i64, each: i64) -> i64 {
        (0..10_000).find(|n| self.run(at(from + n * each)) == title).expect("it runs some time")
    }
}

fn ask(title: &str, client: Option<&str>, priority: i64) -> Ask {
    let key = Key {
        title: title.into(),
        lang: "en".into(),
        font: "default".into(),
        format: "epub".into(),
        options: BTreeMap::new(),
    };
    Ask {
        key,
        filename: format!("{title}.epub"),
        base_filename: None,
        queue: "default".into(),
        client: client.map(str::to_owned),
        meta: None,
        pages: None,
        priority,
        rank: None,
        not_before: None,
        wait_until: None,
        refresh: false,
        retry: false,
        hold: Duration::ZERO,
        bounds: QueueBounds::default(),
    }
}

fn flooded() -> Still {
    let mut queue = Still::new();
    let flood: Vec<Ask> = (0..10_000).map(|n| ask(&format!("flood {n}"), Some("flood"), 10)).collect();
    queue.store.request_all(&flood, at(0)).expect("a batch");
    queue
}

#[test]
fn ten_thousand_jobs_of_one_client_let_another_go_first() {
    let mut queue = flooded();
    queue.ask(&ask("the one", Some("one"), 10), at(5));
    assert_eq!(queue.before("the one", 5, 1), 1, "only the first of the flood was asked for before");
}

#[test]
fn who_names_no_client_goes_before_a_flood_too() {
    let mut queue = flooded();
    queue.ask(&ask("the one", None, 10), at(5));
    assert_eq!(queue.before("the one", 5, 1), 1);
}

#[test]
fn who_asks_an_hour_into_a_flood_has_not_to_wait_for_what_is_left_of_it() {
    let mut queue = flooded();
    for minute in 0..60 {
        queue.run(at(minute * 60));
    }
    queue.ask(&ask("the one", Some("one"), 10), at(3600));
    assert!(queue.before("the one", 3600, 60) <= 1);
}

#[test]
fn a_late_priority_starts_within_its_bound_among_an_endless_stream_of_urgent_ones() {
    // A step of priority is worth two minutes of submission, so an urgent job asked for more than 89 steps later has the
    // higher rank: one a minute, these go before the late one at most, and the last of them ties and loses by its number.
    let bound = 89 * STEP / 60;
    let mut queue = Still::new();
    queue.ask(&ask("patient", None, 90), at(0));
    let started = (0..10_000).find(|minute| {
        queue.ask(&ask(&format!("urgent {minute}"), None, 1), at(minute * 60));
        queue.run(at(minute * 60)) == "patient"
    });
    assert_eq!(started, Some(bound), "after {} hours", 89 * STEP / 3600);
}

#[test]
fn jobs_start_when_they_were_told() {
    let day = day::play(8, 7);
    assert!(day.waited > 200 && day.told * 10 >= day.waited * 9, "{} of {} were told", day.told, day.waited);
    assert!(day.within * 20 >= day.told * 17, "{} of {} started within their range", day.within, day.told);
}

#[test]
fn a_free_slot_is_taken_whatever_the_others_do() {
    let queue = Queue::new();
    std::fs::write(queue.path("S"), "600").expect("a file");
    queue.request("slow", "long");
    let _dispatcher = queue.spawn(["dispatch"]);
    queue.await_state("slow", "long", "started");
    for book in 0..20 {
        queue.request("ok", &format!("Book {book}"));
    }
    // One tick, and no other: the worker that it starts drains the queue beside the long run.
    queue.run(["dispatch"]).code(0).silent();
    eventually("all are ready", || (queue.published().len() == 20).then_some(()));
    assert_eq!(queue.state("slow", "long"), "started");
    queue.run(["cancel", "--format", "slow", "--force", "long"]).code(0);
    queue.await_state("slow", "long", "failed_unknown");
}
