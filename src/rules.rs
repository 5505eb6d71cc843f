//! Decisions without a clock, a file or a database: what a request does to a row, in which order jobs start, when a failed
//! one is tried again, what becomes of a job whose worker is gone, and why a job waits.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::{Failure, Job, Phase, Waiting};

/// The priority of a job whose caller names none.
pub const DEFAULT_PRIORITY: i64 = 10;

/// What one step of priority is worth in milliseconds of submission: a job waits at most this times its priority behind
/// later ones that go before it, so nothing starves.
const PRIORITY_STEP: i64 = 120_000;

/// How far a client's next job is put behind its last one, in milliseconds: clients take turns, whoever floods waits. About
/// what an export takes in one slot: with less, what is left of a flood after an hour counts as asked for long ago.
const FAIR_STEP: i64 = 60_000;

/// A stored time further ahead than this came from a clock that was wrong; it counts as reached.
pub const HORIZON: Duration = Duration::from_secs(400 * 24 * 3600);

/// How often a derived job is put back for its base before that counts as a failure of the base.
pub const MAX_BASE_WAITS: u32 = 3;

/// The place in the order of a queue: the lower starts first. `last` is the rank of the client's last live job at that
/// priority (start-time fair queueing; a job without a client is a client of its own).
pub fn rank(now: DateTime<Utc>, priority: i64, last: Option<i64>) -> i64 {
    let by_submission = now.timestamp_millis() + priority * PRIORITY_STEP;
    last.map_or(by_submission, |last| by_submission.max(last.saturating_add(FAIR_STEP)))
}

/// What a request does to the row that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is no row: a new one.
    Insert,
    /// A live job is joined.
    Join,
    /// A failure old enough, or asked to be ignored, gives way to a fresh job.
    Revive,
    /// A failure is too young: it is the answer.
    Hold,
    /// A failed job whose processes are not gone is only marked as wanted.
    Want,
}

/// Decides what a request does; `retry` ignores the hold.
pub fn on_request(row: Option<&Job>, retry: bool, hold: Duration, now: DateTime<Utc>) -> Step {
    match row.map(|job| &job.phase) {
        None => Step::Insert,
        Some(Phase::Queued { .. } | Phase::Started { .. }) => Step::Join,
        Some(Phase::Failed { token: Some(_), .. }) => Step::Want,
        Some(Phase::Failed { reason, at, .. }) if retry || hold_left(*reason, *at, hold, now).is_none() => Step::Revive,
        Some(Phase::Failed { .. }) => Step::Hold,
    }
}

/// How long a failure of that time still holds off a new request. One in the future (a clock was set back) does not, and
/// neither does one that says nothing of the book: that nobody waited any more.
pub fn hold_left(reason: Failure, failed_at: DateTime<Utc>, hold: Duration, now: DateTime<Utc>) -> Option<Duration> {
    if reason == Failure::WaitExpired {
        return None;
    }
    let age = (now - failed_at).to_std().ok()?;
    hold.checked_sub(age).filter(|left| !left.is_zero())
}

/// What becomes of a job whose worker is gone and whose processes are gone with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// A file fulfils it: the row goes.
    Fulfilled,
    /// Somebody had asked to end it.
    Cancelled,
    /// Back to its place.
    Again,
    /// That happened too often.
    Interrupted(String),
}

/// The bounds on how often a job may lose its worker.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Workers that may die with a job.
    pub interruptions: u32,
    /// Workers that may be told to stop with it.
    pub stops: u32,
}

/// Decides about a job whose worker died.
pub fn after_death(job: &Job, fulfilled: bool, bounds: Bounds) -> Fate {
    if fulfilled {
        Fate::Fulfilled
    } else if job.cancel_at.is_some() {
        Fate::Cancelled
    } else if job.interruptions >= bounds.interruptions {
        Fate::Interrupted(format!("its worker died {} times", job.interruptions + 1))
    } else {
        Fate::Again
    }
}

/// Decides about a job whose worker was told to stop.
pub fn after_stop(job: &Job, bounds: Bounds) -> Fate {
    if job.stops >= bounds.stops {
        Fate::Interrupted(format!("its worker was told to stop {} times", job.stops + 1))
    } else {
        Fate::Again
    }
}

/// The delay before the next try of a job that failed in passing, if one is left; `chance` (0 to 1) spreads it from three
/// quarters of the listed delay to five quarters.
pub fn backoff(delays: &[Duration], used: u32, chance: f64) -> Option<Duration> {
    let delay = delays.get(usize::try_from(used).ok()?)?;
    Some(delay.mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0))
}

/// When a delivery that failed is tried again: after 10 seconds, then each time after twice as long, up to an hour; `None`
/// when that would be more than a day since it was first due.
pub fn tell_again(tries: u32, since: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let delay = chrono::Duration::seconds((10 << tries.min(9)).min(3600));
    Some(now + delay).filter(|again| *again - since <= chrono::Duration::days(1))
}

/// What can be seen about a waiting job and its queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scene {
    /// The queue is paused.
    pub paused: bool,
    /// Slots of its queue.
    pub slots: u32,
    /// Started jobs of its queue.
    pub started: u32,
    /// The gate that is closed, if one is.
    pub gate: Option<Waiting>,
    /// Its base is queued or started.
    pub base_live: bool,
    /// The last tick is older than two minutes.
    pub undispatched: bool,
    /// Its exporter is not installed or not configured.
    pub exporter_missing: bool,
}

/// Why a queued job does not run; `None` when it is about to.
pub fn waiting(job: &Job, scene: Scene, now: DateTime<Utc>) -> Option<Waiting> {
    let Phase::Queued { later } = &job.phase else {
        return None;
    };
    let later = later.filter(|(at, _)| *at > now && *at <= now + HORIZON).map(|(_, why)| why);
    if scene.paused {
        return Some(Waiting::Paused);
    }
    if scene.started >= scene.slots {
        return Some(Waiting::NoFreeSlot);
    }
    let base = scene.base_live.then_some(Waiting::WaitingForBase);
    let backing_off = later.filter(|why| *why == Waiting::BackingOff);
    let dispatcher = scene.undispatched.then_some(Waiting::NoDispatcher);
    let exporter = scene.exporter_missing.then_some(Waiting::ExporterMissing);
    scene.gate.or(backing_off).or(base).or(later).or(dispatcher).or(exporter)
}

/// The longest that a caller is told to let pass before the next look, in seconds.
const SLOWEST_POLL: u64 = 30;

/// The longest while the job runs: its end is near and its caller wants it.
const SLOWEST_POLL_OF_RUNNING: u64 = 10;

/// In how many seconds a caller should look again; `None` when the answer is final. What changes soon is looked at soon: the
/// next ones in the queue every second, those far behind every 30 s, so that a queue of any length with a caller for each job
/// sees about ten looks a second and a thirtieth of its length.
pub fn poll_after(job: &Job, ahead: Option<u32>, waiting: Option<Waiting>, now: DateTime<Utc>) -> Option<u64> {
    match &job.phase {
        Phase::Failed { .. } => None,
        Phase::Started { since, .. } => Some((seconds_until(now, *since) / 10).clamp(1, SLOWEST_POLL_OF_RUNNING)),
        Phase::Queued { later } => {
            let by_place = 1 + u64::from(ahead.unwrap_or(0)) / 2;
            let by_time = later.map_or(0, |(at, _)| seconds_until(at, now));
            let by_reason = match waiting {
                Some(Waiting::Paused | Waiting::NoDispatcher | Waiting::ExporterMissing) => SLOWEST_POLL,
                Some(Waiting::LowMemory | Waiting::HighLoad | Waiting::LowDisk) => 5,
                Some(Waiting::NoFreeSlot | Waiting::BackingOff | Waiting::WaitingForBase | Waiting::NotBefore)
                | None => 1,
            };
            Some(by_place.max(by_time).max(by_reason).min(SLOWEST_POLL))
        }
    }
}

/// Whole seconds from `now` to `at`, begun ones counted; 0 when it is past.
fn seconds_until(at: DateTime<Utc>, now: DateTime<Utc>) -> u64 {
    (at - now).to_std().map_or(0, whole_seconds)
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The reason of a failed job whose base failed, for people.
pub fn base_failed_detail(format: &str, reason: Failure, detail: &str) -> String {
    format!("{format}: {reason}: {detail}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_millis;
    use crate::key::Key;

    fn job(phase: Phase) -> Job {
        Job {
            id: 1,
            key: Key {
                title: "A".into(),
                lang: "en".into(),
                font: "default".into(),
                format: "epub".into(),
                options: std::collections::BTreeMap::new(),
            },
            filename: "f".into(),
            base_filename: None,
            queue: "default".into(),
            client: None,
            meta: None,
            priority: 10,
            rank: 0,
            submitted_at: from_millis(0),
            newer_than: None,
            cancel_at: None,
            attempts: 1,
            retries: 0,
            interruptions: 0,
            stops: 0,
            base_waits: 0,
            last_run: None,
            phase,
        }
    }

    fn failed(at: i64, token: Option<&str>) -> Job {
        let token = token.map(str::to_owned);
        job(Phase::Failed { reason: Failure::ExitNonzero, detail: String::new(), at: from_millis(at), token })
    }

    #[test]
    fn a_delivery_is_tried_more_and_more_rarely_and_given_up_after_a_day() {
        let start = from_millis(1_000_000_000_000);
        let (mut now, mut tries, mut pauses) = (start, 0, Vec::new());
        while let Some(again) = tell_again(tries, start, now) {
            pauses.push((again - now).num_seconds());
            (now, tries) = (again, tries + 1);
        }
        assert_eq!(pauses[..10], [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]);
        assert!(pauses[10..].iter().all(|pause| *pause == 3600));
        assert!((23..=24).contains(&(now - start).num_hours()), "{now}");
    }

    #[test]
    fn a_failure_holds_for_a_minute_and_then_gives_way() {
        let hold = Duration::from_secs(60);
        let table = [
            (30_000, false, Step::Hold),
            (60_000, false, Step::Revive),
            (30_000, true, Step::Revive),
            (-90_000, false, Step::Revive),
        ];
        for (now, retry, step) in table {
            assert_eq!(on_request(Some(&failed(0, None)), retry, hold, from_millis(now)), step, "{now} {retry}");
        }
        assert_eq!(on_request(Some(&failed(0, Some("t"))), true, hold, from_millis(90_000)), Step::Want);
        assert_eq!(on_request(None, false, hold, from_millis(0)), Step::Insert);
    }

    #[test]
    fn a_client_that_floods_waits_behind_one_that_asks_once() {
        let now = from_millis(1_000_000);
        let mut last = None;
        for _ in 0..100 {
            last = Some(rank(now, 10, last));
        }
        let other = rank(from_millis(1_000_050), 10, None);
        assert!(other < last.unwrap());
    }

    #[test]
    fn priority_is_worth_minutes_and_nothing_starves() {
        let patient = rank(from_millis(0), 90, None);
        let pushy = |at| rank(from_millis(at), 1, None);
        assert!(pushy(1000) < patient);
        assert!(pushy(89 * PRIORITY_STEP + 1) > patient);
    }

    #[test]
    fn a_worker_may_die_three_times_with_a_job() {
        let bounds = Bounds { interruptions: 3, stops: 20 };
        let mut lost = job(Phase::Queued { later: None });
        for interruptions in 0..3 {
            lost.interruptions = interruptions;
            assert_eq!(after_death(&lost, false, bounds), Fate::Again);
        }
        lost.interruptions = 3;
        assert!(matches!(after_death(&lost, false, bounds), Fate::Interrupted(_)));
        assert_eq!(after_death(&lost, true, bounds), Fate::Fulfilled);
    }

    #[test]
    fn a_worker_may_be_told_to_stop_twenty_times_with_a_job() {
        let bounds = Bounds { interruptions: 3, stops: 20 };
        let mut put_back = Job { stops: 19, interruptions: 9, ..job(Phase::Queued { later: None }) };
        assert_eq!(after_stop(&put_back, bounds), Fate::Again);
        put_back.stops = 20;
        assert_eq!(after_stop(&put_back, bounds), Fate::Interrupted("its worker was told to stop 21 times".into()));
    }

    #[test]
    fn a_failed_base_is_told_with_its_reason() {
        assert_eq!(base_failed_detail("epub", Failure::ExitNonzero, "exit 3"), "epub: exit_nonzero: exit 3");
    }

    #[test]
    fn all_the_listed_delays_are_used_and_spread() {
        let delays = [Duration::from_secs(30), Duration::from_secs(120)];
        assert_eq!(backoff(&delays, 0, 0.5), Some(Duration::from_secs(30)));
        assert_eq!(backoff(&delays, 1, 1.0), Some(Duration::from_secs(150)));
        assert_eq!(backoff(&delays, 2, 0.0), None);
    }

    fn started(since: i64) -> Job {
        job(Phase::Started {
            token: "t".into(),
            slot: "default.0".into(),
            worker: "1.1".into(),
            since: from_millis(since),
            deadline: from_millis(since + 60_000),
            progress: None,
        })
    }

    #[test]
    fn callers_look_again_the_sooner_the_nearer_the_end_is() {
        let queued = job(Phase::Queued { later: None });
        let later = job(Phase::Queued { later: Some((from_millis(12_500), Waiting::NotBefore)) });
        let now = from_millis(0);
        for (job, ahead, waiting, seconds) in [
            (&queued, Some(0), None, Some(1)),
            (&queued, Some(9), Some(Waiting::NoFreeSlot), Some(5)),
            (&queued, Some(1000), Some(Waiting::NoFreeSlot), Some(30)),
            (&queued, Some(0), Some(Waiting::HighLoad), Some(5)),
            (&queued, Some(0), Some(Waiting::Paused), Some(30)),
            (&later, Some(0), Some(Waiting::NotBefore), Some(13)),
            (&started(0), None, None, Some(1)),
            (&started(-35_000), None, None, Some(3)),
            (&started(-900_000), None, None, Some(10)),
            (&failed(0, None), None, None, None),
        ] {
            assert_eq!(poll_after(job, ahead, waiting, now), seconds, "{ahead:?} {waiting:?}");
        }
    }

    #[test]
    fn a_hundred_callers_do_not_hammer() {
        let queued = job(Phase::Queued { later: None });
        let every = |ahead| poll_after(&queued, Some(ahead), Some(Waiting::NoFreeSlot), from_millis(0)).unwrap();
        let looks_a_second: f64 = (0..100).map(|ahead| 1.0 / every(ahead) as f64).sum();
        assert!(looks_a_second < 11.0, "{looks_a_second}");
    }

    #[test]
    fn the_first_reason_that_applies_is_told() {
        let queued = job(Phase::Queued { later: Some((from_millis(10), Waiting::NotBefore)) });
        let free = Scene { slots: 2, ..Scene::default() };
        let now = from_millis(0);
        assert_eq!(waiting(&queued, free, now), Some(Waiting::NotBefore));
        assert_eq!(waiting(&queued, free, from_millis(9)), Some(Waiting::NotBefore));
        assert_eq!(waiting(&queued, free, from_millis(10)), None, "that is when a claim takes it");
        assert_eq!(HORIZON.as_secs(), 34_560_000, "400 days");
        assert_eq!(waiting(&queued, free, now - HORIZON - Duration::from_secs(1)), None, "a claim takes it now");
        let with_base = Scene { base_live: true, ..free };
        assert_eq!(waiting(&queued, with_base, now), Some(Waiting::WaitingForBase));
        let failed_once = job(Phase::Queued { later: Some((from_millis(10), Waiting::BackingOff)) });
        assert_eq!(waiting(&failed_once, with_base, now), Some(Waiting::BackingOff));
        let closed = Scene { gate: Some(Waiting::LowDisk), ..with_base };
        assert_eq!(waiting(&failed_once, closed, now), Some(Waiting::LowDisk));
        assert_eq!(waiting(&queued, Scene { started: 2, ..free }, now), Some(Waiting::NoFreeSlot));
        assert_eq!(waiting(&queued, Scene { paused: true, started: 2, ..free }, now), Some(Waiting::Paused));
        assert_eq!(
            waiting(&queued, Scene { undispatched: true, ..free }, from_millis(11)),
            Some(Waiting::NoDispatcher)
        );
    }
}
