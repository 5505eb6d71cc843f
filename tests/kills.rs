//! Must-show 6: `kill -9` of worker, of exporter, of both, of everything, at random moments.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::{Process, Queue, kill, lives, since_epoch, text};
use crate::scripts::{add_format, signal_together};

/// How often something is killed.
const ROUNDS: u32 = 200;

/// How many exporters may live at once.
const SLOTS: usize = 4;

/// A book takes up to a fifth of a second, and every exporter has a helper in a session of its own that outlives it.
const BOOK: &str = "setsid sleep 600 >/dev/null 2>&1 & sleep 0.$((RANDOM % 2))$((RANDOM % 10)); whole";

/// Numbers that look random and are the same again for the same seed (xorshift64*).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

fn variable<'p>(process: &'p Process, name: &str) -> Option<&'p str> {
    process.environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
}

/// The runs that have a living exporter at one same moment: all were seen before the first is looked at again.
fn living_runs(exporters: &[Process]) -> BTreeSet<&str> {
    let runs = exporters.iter().filter_map(|process| Some((process, variable(process, "EXPORT_QUEUE_RUN")?)));
    runs.filter(|(process, _)| lives(process.pid)).map(|(_, run)| run).collect()
}

/// Kills one of the four, and gives back the titles whose exporters were hit.
fn strike(queue: &Queue, chance: &mut Chance) -> Vec<String> {
    let all = queue.processes();
    let is_marked = |process: &&Process| variable(process, "EXPORT_QUEUE_RUN").is_some();
    let is_worker = |process: &&Process| process.command.contains("\0work\0") && !is_marked(process);
    let one = |chance: &mut Chance, from: Vec<&Process>| {
        let index = chance.below(from.len().max(1) as u64) as usize;
        from.get(index).map(|process| (*process).clone())
    };
    let worker = one(chance, all.iter().filter(is_worker).collect());
    let exporter = one(chance, all.iter().filter(is_marked).collect());
    let victims: Vec<Process> = match chance.below(4) {
        0 => worker.into_iter().collect(),
        1 => exporter.into_iter().collect(),
        2 => worker.into_iter().chain(exporter).collect(),
        _ => all,
    };
    if !victims.is_empty() {
        signal_together(&victims, "KILL");
    }
    victims.iter().filter_map(|process| variable(process, "EXPORT_QUEUE_TITLE")).map(str::to_owned).collect()
}

#[test]
fn whatever_is_killed_at_random_every_title_ends_and_nothing_is_left() {
    let given = std::env::var("EXPORT_QUEUE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| since_epoch().as_nanos() as u64 | 1);
    println!("EXPORT_QUEUE_TEST_SEED={seed}");
    let mut chance = Chance(seed);
    let queue = Queue::new();
    queue.reconfigure("slots = 2", &format!("slots = {SLOTS}"));
    add_format(&queue, "book", "", BOOK);
    let mut struck = BTreeSet::new();
    for round in 0..ROUNDS {
        queue.request("book", &format!("book {round}"));
        let mut tick = queue.spawn(["dispatch"]);
        // The moment is what is random here; nothing is waited for.
        std::thread::sleep(Duration::from_millis(chance.below(120)));
        struck.extend(strike(&queue, &mut chance));
        if round % 4 == 0 {
            let exporters = queue.exporters();
            let runs = living_runs(&exporters);
            assert!(runs.len() <= SLOTS, "round {round}: {runs:?}");
        }
        if !tick.is_over() && chance.below(8) == 0 {
            kill(tick.pid(), "KILL");
        }
        tick.wait();
    }
    for _ in 0..=SLOTS {
        queue.dispatch().code(0);
    }
    let mut failed = 0;
    for round in 0..ROUNDS {
        let title = format!("book {round}");
        let status = queue.status("book", &title);
        match text(&status["state"]).as_str() {
            "ready" => {}
            "failed_unknown" => {
                let (reason, detail) = (text(&status["reason"]), text(&status["detail"]));
                match reason.as_str() {
                    "interrupted" => assert_eq!(detail, "its worker died 4 times", "{title}"),
                    "killed_by_signal" => {
                        assert!(struck.contains(&title) && detail.starts_with("signal 9"), "{title}: {detail}");
                    }
                    _ => panic!("no truthful reason: {status}"),
                }
                failed += 1;
            }
            _ => panic!("it is stuck: {status}"),
        }
    }
    assert!(failed < ROUNDS / 2, "{failed} of {ROUNDS} failed");
    queue.assert_quiet();
}
