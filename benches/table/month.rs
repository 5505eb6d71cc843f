//! A month of a large wiki on a scaled clock: the real store, the real rules of the cache and of order; books are made by
//! nobody, in times drawn by chance from a fixed seed.
//!
//! 50,000 requests a day with a daily tide, in bursts of five on average, by Zipf's law over 200,000 titles; every fourth day a
//! crawler comes twice, for ten minutes each, and asks for anything at 25 times the usual rate. Eight slots, eight seconds a
//! book on average, every hundredth book cannot be made. The history is kept for a week, so that a month shows whether it grows.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use export_queue::clock::from_millis;
use export_queue::config::{MaxAge, TtlFrom};
use export_queue::job::{Failure, Outcome, Phase};
use export_queue::key::Key;
use export_queue::retention::{Dates, Policy, Standing};
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{Ask, Claim, FailureNote, QueueBounds, Requested, Store};

use crate::place::Place;
use crate::timer::{Times, span};

const TITLES: usize = 200_000;
const A_DAY: f64 = 50_000.0;
/// What the titles of books that cannot be made end in.
const BROKEN: &str = "57";
/// How likely it is that a request is followed by another of its burst, and in how many seconds.
const IN_BURST: f64 = 0.8;
const BREATH: f64 = 0.5;
const SPIKE: f64 = 25.0;
const SLOTS: usize = 8;
const BOOK: f64 = 8.0;
const DAY: i64 = 86_400_000;
const MINUTE: i64 = 60_000;

/// Splitmix64: chance that is the same on every machine.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A pause between events of that many a second, in milliseconds.
    fn pause(&mut self, rate: f64) -> i64 {
        ((1.0 - self.next()).ln() * -1_000.0 / rate) as i64 + 1
    }

    /// The same where they come in bursts.
    fn pause_in_bursts(&mut self, rate: f64) -> i64 {
        let between = (1.0 / rate - IN_BURST * BREATH) / (1.0 - IN_BURST);
        let seconds = if self.next() < IN_BURST { BREATH } else { between };
        self.pause(1.0 / seconds)
    }
}

/// What happened.
#[derive(Default)]
struct Told {
    asked: [u64; 2],
    hits: u64,
    joined: u64,
    held: u64,
    refused: u64,
    exports: u64,
    failures: u64,
    waits: [Vec<Duration>; 2],
    most_queued: u64,
    most_files: usize,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Reader,
    Crawler,
}

struct Month {
    store: Sqlite,
    policy: Policy,
    chance: Chance,
    zipf: Vec<f64>,
    files: HashMap<String, DateTime<Utc>>,
    /// When each slot's run ends.
    running: Vec<Option<(i64, export_queue::job::Job)>>,
    runs: u64,
    told: Told,
}

/// Lives through so many days and prints a line for some of them.
pub(crate) fn month(days: usize) {
    let place = Place::in_memory();
    let database = place.path("state/queue.db");
    let weights = (1..=TITLES).map(|rank| 1.0 / rank as f64).scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    let mut month = Month {
        store: Sqlite::open(&database, "").expect("the queue"),
        policy: Policy {
            max_age: MaxAge::After(Duration::from_secs(600)),
            grace: Duration::from_secs(30),
            from: TtlFrom::Published,
        },
        chance: Chance(7),
        zipf: weights.collect(),
        files: HashMap::new(),
        running: vec![None; SLOTS],
        runs: 0,
        told: Told::default(),
    };
    println!(
        "| day | requests | from the cache | joined | exports | queued at most | files at most | runs kept | database |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        place.database().query_row(&sql, [], |row| row.get(0)).expect("a count")
    };
    let bytes = || std::fs::metadata(&database).map_or(0, |meta| meta.len());
    let before = bytes();
    let days = days as i64;
    for day in 0..days {
        month.day(day);
        if day < 3 || day % 3 == 2 || day == days - 1 {
            month.line(day, count("runs"), bytes());
        }
    }
    let log = std::fs::metadata(place.path("state/queue.db-wal")).map_or(0, |meta| meta.len());
    println!("the database: {before} bytes before, {} after, and a log of {log}", bytes());
    for table in ["jobs", "interests", "deliveries", "runs"] {
        println!("rows of {table}: {}", count(table));
    }
    let Told { joined, held, refused, failures, .. } = &month.told;
    println!("{joined} joined a job, {held} were told a failure, {refused} were refused; {failures} books failed");
    let [readers, crawlers] = std::mem::take(&mut month.told.waits).map(Times);
    for (who, waits) in [("readers", readers), ("the crawler", crawlers)] {
        let quantiles: Vec<String> = [0.5, 0.95, 0.99, 1.0].iter().map(|share| span(waits.quantile(*share))).collect();
        println!("waits of {who} for a new export, p50/p95/p99/most: {} ({})", quantiles.join(" / "), waits.0.len());
    }
}

impl Month {
    fn day(&mut self, day: i64) {
        let (start, end) = (day * DAY + DAY, (day + 1) * DAY + DAY);
        let mut arrival = [start + self.chance.pause_in_bursts(Self::rate(start)), start];
        let mut minute = start;
        let has_crawler = day % 4 == 3;
        self.told.most_queued = 0;
        self.told.most_files = 0;
        loop {
            if !has_crawler || arrival[1] >= end {
                arrival[1] = i64::MAX;
            }
            let ending = self.running.iter().flatten().map(|(at, _)| *at).min().unwrap_or(i64::MAX);
            let next = arrival[0].min(arrival[1]).min(minute).min(ending);
            if next >= end {
                return;
            }
            if next == ending {
                self.end_run(next);
            } else if next == arrival[0] {
                let title = self.popular();
                self.request(title, Who::Reader, next);
                arrival[0] = next + self.chance.pause_in_bursts(Self::rate(next));
            } else if next == arrival[1] {
                let at = (next - start) % (DAY / 2);
                if at < 10 * MINUTE {
                    let title = (self.chance.next() * TITLES as f64) as usize;
                    self.request(title, Who::Crawler, next);
                    arrival[1] = next + self.chance.pause(SPIKE * A_DAY / 86_400.0);
                } else {
                    arrival[1] = next - at + DAY / 2;
                }
            } else {
                self.tick(next);
                minute += MINUTE;
            }
        }
    }

    /// Requests a second: a tide with its ebb at night.
    fn rate(now: i64) -> f64 {
        let angle = (now % DAY) as f64 / DAY as f64 * std::f64::consts::TAU;
        A_DAY / 86_400.0 * (1.0 - 0.6 * angle.cos())
    }

    fn popular(&mut self) -> usize {
        let at = self.chance.next() * self.zipf.last().copied().unwrap_or_default();
        self.zipf.partition_point(|sum| *sum < at)
    }

    fn request(&mut self, title: usize, who: Who, now: i64) {
        self.told.asked[usize::from(who == Who::Crawler)] += 1;
        let (title, now) = (format!("Title {title}"), from_millis(now));
        let filename = format!("{}.epub", title.replace(' ', "_"));
        let is_ready = |date: &DateTime<Utc>| {
            matches!(
                self.policy.standing(Dates { modified: *date, changed: *date, accessed: *date }, now),
                Standing::Ready { .. }
            )
        };
        if self.files.get(&filename).is_some_and(is_ready) {
            self.told.hits += 1;
            return;
        }
        let key = Key { title, lang: "en".into(), font: "default".into(), format: "epub".into(), options: [].into() };
        let ask = Ask {
            key,
            filename,
            base_filename: None,
            queue: "default".into(),
            client: (who == Who::Crawler).then(|| "crawler".into()),
            meta: None,
            pages: None,
            priority: 10,
            rank: None,
            not_before: None,
            wait_until: None,
            refresh: false,
            retry: false,
            hold: Duration::from_secs(60),
            bounds: QueueBounds { queued: 100_000, per_client: 0 },
        };
        match self.store.request(&ask, now).expect("a request") {
            Requested::Queued(_) => self.start(now),
            Requested::Joined(_) => self.told.joined += 1,
            Requested::Failing(_) => self.told.held += 1,
            Requested::QueueFull | Requested::ClientLimit => self.told.refused += 1,
        }
    }

    fn claim(&mut self, slot: usize) -> Claim {
        self.runs += 1;
        Claim {
            queue: "default".into(),
            formats: vec![("epub".into(), Duration::from_secs(300))],
            token: format!("{:020x}", self.runs),
            node: "node".into(),
            slot: format!("default.{slot}"),
            worker: "1.1".into(),
            max_running: 0,
            lease: Duration::from_secs(90),
        }
    }

    /// A free slot takes the next job.
    fn start(&mut self, now: DateTime<Utc>) {
        if let Some(slot) = self.running.iter().position(Option::is_none) {
            let claim = self.claim(slot);
            let job = self.store.claim(&claim, now).expect("a claim");
            self.run(slot, job, now);
        }
    }

    fn run(&mut self, slot: usize, job: Option<export_queue::job::Job>, now: DateTime<Utc>) {
        self.running[slot] = job.map(|job| {
            let waited = (now - job.submitted_at).to_std().unwrap_or_default();
            self.told.waits[usize::from(job.client.is_some())].push(waited);
            (now.timestamp_millis() + 500 + self.chance.pause(1.0 / (BOOK - 0.5)), job)
        });
    }

    fn end_run(&mut self, at: i64) {
        let slot = self.running.iter().position(|run| run.as_ref().is_some_and(|(end, _)| *end == at)).expect("a run");
        let (Some((_, job)), now) = (self.running[slot].take(), from_millis(at)) else { return };
        let claim = self.claim(slot);
        if job.key.title.ends_with(BROKEN) {
            self.told.failures += 1;
            let note = FailureNote { reason: Failure::ExitNonzero, detail: "exit 1", keeps_token: false };
            let run = job.run(Outcome::FailedUnknown, now);
            assert!(self.store.fail(&run, "node", &note).expect("an end"), "the row is this run's");
            let job = self.store.claim(&claim, now).expect("a claim");
            return self.run(slot, job, now);
        }
        self.told.exports += 1;
        let mut run = job.run(Outcome::Ready, now);
        run.published_at = Some(now);
        run.measured.bytes = Some(1_000_000);
        self.files.insert(job.filename.clone(), now);
        let (_, next) = self.store.finish_and_claim(&run, &claim, now).expect("an end");
        debug_assert!(next.as_ref().is_none_or(|job| matches!(job.phase, Phase::Started { .. })));
        self.run(slot, next, now);
    }

    /// What the minute's tick does with the database and the cache.
    fn tick(&mut self, at: i64) {
        let now = from_millis(at);
        let before = self.policy.due_before(now).expect("an age");
        loop {
            let due = self.store.due_files(before, now, (0, 512)).expect("the index");
            if due.is_empty() {
                break;
            }
            for filename in &due {
                self.files.remove(filename);
            }
            self.store.swept(&due).expect("the index");
        }
        self.store.expire_failed(now - Duration::from_secs(86_400), 1000, now).expect("the failures");
        if at % (60 * MINUTE) == 0 {
            let week = now - Duration::from_secs(7 * 86_400);
            while self.store.prune_history(week, 1_000_000).expect("the history") >= 10_000 {}
        }
        let queued: u64 = self.store.tally(now).expect("a count").iter().map(|tally| tally.queued).sum();
        self.told.most_queued = self.told.most_queued.max(queued);
        self.told.most_files = self.told.most_files.max(self.files.len());
    }

    fn line(&self, day: i64, rows: i64, bytes: u64) {
        let Told { asked, hits, joined, exports, most_queued, most_files, .. } = &self.told;
        let all = (asked[0] + asked[1]).max(1) as f64;
        println!(
            "| {} | {all} | {:.1} % | {:.1} % | {exports} | {most_queued} | {most_files} | {rows} | {:.0} MB |",
            day + 1,
            *hits as f64 / all * 100.0,
            *joined as f64 / all * 100.0,
            bytes as f64 / 1e6
        );
    }
}
