//! A day of a queue on a clock of its own: the real store, rules and forecasts, exporters that take the time that chance
//! gives them. More is asked for in the evening than the slots can make, so that a backlog grows and drains.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::f64::consts::TAU;
use std::time::Duration;

use chrono::{DateTime, Utc};
use export_queue::clock::from_millis;
use export_queue::forecast;
use export_queue::job::{Job, Outcome, Run};
use export_queue::key::Key;
use export_queue::request::outlook;
use export_queue::rules::{DEFAULT_PRIORITY, Scene};
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{Ask, Claim, QueueBounds, Requested, Store};

const SLOTS: u32 = 4;

/// How many jobs are asked for in an hour, on average over a day.
const HOURLY: f64 = 190.0;

/// Formats: how many of a hundred jobs, the seconds that half of its runs do not exceed, and how widely they are spread (the
/// deviation of the logarithm).
const FORMATS: &[(&str, u32, f64, f64)] = &[("epub", 60, 25.0, 0.6), ("mobi", 10, 45.0, 0.6), ("pdf", 30, 120.0, 0.5)];

/// One in so many fails, one in so many has a better priority than the others.
const FAILING: u32 = 20;
const URGENT: u32 = 10;

/// What became of the forecasts.
#[derive(Debug, Default)]
pub(crate) struct Day {
    /// Jobs asked for.
    pub(crate) asked: usize,
    /// Those of them that had to wait.
    pub(crate) waited: usize,
    /// Those of the waiting that were told a range.
    pub(crate) told: usize,
    /// Those of the told that started within it.
    pub(crate) within: usize,
    /// Those of the told that started before it.
    pub(crate) early: usize,
    /// The width of each range told, as a share of its middle.
    pub(crate) widths: Vec<f64>,
    /// How long the job waited that waited longest, in seconds.
    pub(crate) longest: f64,
}

/// Plays so many hours from noon on.
pub(crate) fn play(hours: u32, seed: u64) -> Day {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("queue.db");
    std::fs::write(&path, "").expect("an empty file");
    let store = Sqlite::open(&path, "the id").expect("a queue");
    let mut player = Player {
        store,
        chance: fastrand::Rng::with_seed(seed),
        busy: BinaryHeap::new(),
        told: BTreeMap::new(),
        runs: 0,
        day: Day::default(),
    };
    let end = i64::from(hours) * 3_600_000;
    let mut next = 0;
    loop {
        next += player.pause(next);
        while player.busy.peek().is_some_and(|Reverse((at, _, _))| *at <= next) {
            player.end_one();
        }
        if next > end {
            break;
        }
        player.ask(next);
    }
    while !player.busy.is_empty() {
        player.end_one();
    }
    player.day
}

struct Player {
    store: Sqlite,
    chance: fastrand::Rng,
    /// When each run ends, with its token and whether it fails; its job is found by the token.
    busy: BinaryHeap<Reverse<(i64, String, bool)>>,
    /// By job: when it was asked for, and the range it was told.
    told: BTreeMap<i64, (i64, Option<(u64, u64)>)>,
    runs: u32,
    day: Day,
}

fn at(millis: i64) -> DateTime<Utc> {
    from_millis(1_700_000_000_000 + millis)
}

impl Player {
    /// Until the next request, in milliseconds: most come six hours after the beginning.
    fn pause(&mut self, now: i64) -> i64 {
        let hour = now as f64 / 3_600_000.0;
        let hourly = HOURLY * (1.0 - 0.5 * (TAU * (hour + 12.0) / 24.0 + TAU / 4.0).cos());
        (-self.chance.f64().max(1e-9).ln() / hourly * 3_600_000.0) as i64
    }

    fn ask(&mut self, now: i64) {
        let mut dice = self.chance.u32(0..100);
        let (format, ..) = FORMATS
            .iter()
            .find(|(_, share, ..)| dice.checked_sub(*share).map(|rest| dice = rest).is_none())
            .expect("a format");
        let priority = if self.chance.u32(0..URGENT) == 0 { DEFAULT_PRIORITY - 1 } else { DEFAULT_PRIORITY };
        let ask = wish(self.day.asked, format, priority);
        let Ok(Requested::Queued(job)) = self.store.request(&ask, at(now)) else { panic!("it is new") };
        self.day.asked += 1;
        if self.busy.len() < SLOTS as usize {
            return self.start_one(now);
        }
        let scene = Scene { slots: SLOTS, started: SLOTS, ..Scene::default() };
        let outlook = outlook(&self.store, &job, scene, at(now)).expect("an outlook");
        let eta = forecast::eta(&job, None, &outlook, at(now));
        self.told.insert(job.id, (now, eta));
    }

    fn start_one(&mut self, now: i64) {
        self.runs += 1;
        let claim = Claim {
            queue: "default".into(),
            formats: FORMATS.iter().map(|(name, ..)| ((*name).to_owned(), Duration::from_secs(900))).collect(),
            token: format!("t{}", self.runs),
            node: "node".into(),
            slot: "default.0".into(),
            worker: "7.8".into(),
            max_running: 0,
            lease: Duration::from_secs(90),
        };
        let Some(job) = self.store.claim(&claim, at(now)).expect("a claim") else { return };
        self.compare(&job, now);
        let (_, _, median, spread) = FORMATS.iter().find(|(name, ..)| *name == job.key.format).expect("a format");
        let normal = (-2.0 * self.chance.f64().max(1e-9).ln()).sqrt() * (TAU * self.chance.f64()).cos();
        let took = (median * (spread * normal).exp()).min(890.0);
        let fails = self.chance.u32(0..FAILING) == 0;
        self.busy.push(Reverse((now + (took * 1000.0) as i64, claim.token, fails)));
    }

    fn compare(&mut self, job: &Job, now: i64) {
        let Some((asked, eta)) = self.told.remove(&job.id) else { return };
        let waited = (now - asked) as f64 / 1000.0;
        self.day.waited += 1;
        self.day.longest = self.day.longest.max(waited);
        let Some((soonest, latest)) = eta else { return };
        let (soonest, latest) = (soonest as f64, latest as f64);
        self.day.told += 1;
        self.day.within += usize::from((soonest..=latest).contains(&waited));
        self.day.early += usize::from(waited < soonest);
        self.day.widths.push(2.0 * (latest - soonest) / (latest + soonest));
    }

    fn end_one(&mut self) {
        let Some(Reverse((now, token, fails))) = self.busy.pop() else { return };
        let job = self.store.find_by_token(&token).expect("a look").expect("a row");
        let outcome = if fails { Outcome::FailedUnknown } else { Outcome::Ready };
        let run = Run { published_at: (!fails).then(|| at(now)), ..job.run(outcome, at(now)) };
        if fails {
            let reason = export_queue::job::Failure::ExitNonzero;
            let note = export_queue::store::FailureNote { reason, detail: "exit 1", keeps_token: false };
            self.store.fail(&run, "node", &note).expect("an end");
        } else {
            self.store.finish(&run, "node").expect("an end");
        }
        self.start_one(now);
    }
}

fn wish(number: usize, format: &str, priority: i64) -> Ask {
    let (title, font) = (format!("Book {number}"), "default".to_owned());
    Ask {
        filename: format!("{number}.{format}"),
        key: Key { title, lang: "en".into(), font, format: format.to_owned(), options: BTreeMap::new() },
        base_filename: None,
        queue: "default".into(),
        client: None,
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
