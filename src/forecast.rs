//! When a job starts and when it is ready: a range, or nothing rather than a guess.
//!
//! The queue ahead is replayed some times, each job that goes before taking as long as some past run of its format took;
//! the range told is that of the replays, and about nine in ten jobs start within it. What comes later and goes before all the same (a
//! lower priority, a retry) is not foreseen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::{Job, Phase, Waiting};

/// How many successful runs of a format it takes to foretell anything of the next one.
const MIN_HISTORY: usize = 3;

/// Jobs ahead are counted to this.
const AHEAD_COUNTED: u32 = 1000;

/// How often the queue is replayed.
const REPLAYS: u64 = 40;

/// What a forecast for a job rests on.
#[derive(Debug, Clone, Default)]
pub struct Outlook {
    /// Slots of its queue that take jobs.
    pub slots: u32,
    /// What runs in them.
    pub running: Vec<Running>,
    /// The formats of the queued jobs that go before it, in their order, counted to 1000.
    pub ahead: Vec<String>,
    /// How long the last successful runs of each of these formats took, and of its own, in any order.
    pub history: BTreeMap<String, Vec<Duration>>,
}

/// A run under way.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its format.
    pub format: String,
    /// For how long.
    pub elapsed: Duration,
    /// How long it may take.
    pub limit: Duration,
}

/// Whether the start of a queued job can be foreseen, given history: it waits for nothing but a slot or the time, and the queue
/// ahead of it was counted to its end.
pub fn can_be_foreseen(waiting: Option<Waiting>, ahead: u32) -> bool {
    let by_order = match waiting {
        None | Some(Waiting::NoFreeSlot | Waiting::BackingOff | Waiting::NotBefore) => true,
        Some(
            Waiting::Paused
            | Waiting::LowMemory
            | Waiting::HighLoad
            | Waiting::LowDisk
            | Waiting::WaitingForBase
            | Waiting::NoDispatcher
            | Waiting::ExporterMissing,
        ) => false,
    };
    by_order && ahead < AHEAD_COUNTED
}

/// In how many seconds, at least and at most, a queued job is expected to start and a started one to be ready. `None`
/// without history of its format and of those that go before it, beyond the counted part of the queue, and where something
/// else than a slot or the time is waited for.
pub fn eta(job: &Job, waiting: Option<Waiting>, outlook: &Outlook, now: DateTime<Utc>) -> Option<(u64, u64)> {
    let own = outlook.known(&job.key.format)?;
    match &job.phase {
        Phase::Failed { .. } => None,
        Phase::Started { since, .. } => {
            let elapsed = (now - *since).to_std().unwrap_or_default();
            let left = |tenths| quantile(own, tenths).map(|took| took.saturating_sub(elapsed));
            Some((left(5)?.as_secs(), whole_seconds(left(9)?)))
        }
        Phase::Queued { later } => {
            if !can_be_foreseen(waiting, outlook.ahead.len() as u32) {
                return None;
            }
            let (soonest, latest) = outlook.start()?;
            let by_time = later.map_or(0, |(at, _)| (at - now).to_std().map_or(0, whole_seconds));
            Some((soonest.as_secs().max(by_time), whole_seconds(latest).max(by_time) + 1))
        }
    }
}

impl Outlook {
    /// How long runs of a format took, if that is enough to go by.
    fn known(&self, format: &str) -> Option<&[Duration]> {
        self.history.get(format).map(Vec::as_slice).filter(|took| took.len() >= MIN_HISTORY)
    }

    /// After how long a slot is free for the job, at least and at most.
    fn start(&self) -> Option<(Duration, Duration)> {
        if self.slots == 0 {
            return None;
        }
        let formats: BTreeSet<&String> = self.ahead.iter().collect();
        let known = formats.iter().map(|format| self.known(format)).collect::<Option<Vec<_>>>()?;
        let formats: Vec<&String> = formats.into_iter().collect();
        // Every format ahead is among them: they were collected from there.
        let ahead: Vec<usize> = self.ahead.iter().filter_map(|format| formats.binary_search(&format).ok()).collect();
        let starts: Vec<Duration> = (0..REPLAYS).map(|seed| self.replay(&known, &ahead, seed)).collect();
        quantile(&starts, 0).zip(quantile(&starts, 10))
    }

    /// When a slot is free for the job, if all that goes before takes as long as chance has it; `ahead` are places in
    /// `known`. The history itself is drawn anew each time: it is a sample too, and a long queue repeats its error.
    fn replay(&self, known: &[&[Duration]], ahead: &[usize], seed: u64) -> Duration {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut free_at: BinaryHeap<Reverse<Duration>> =
            self.running.iter().map(|run| Reverse(run.left(self.known(&run.format), &mut chance))).collect();
        let free = (self.slots as usize).saturating_sub(free_at.len());
        free_at.extend(std::iter::repeat_n(Reverse(Duration::ZERO), free));
        // Where slots were taken out of the configuration, as many runs end without another one in their place.
        for _ in self.slots as usize..free_at.len() {
            free_at.pop();
        }
        let drawn: Vec<Vec<Duration>> =
            known.iter().map(|took| took.iter().filter_map(|_| chance.choice(*took).copied()).collect()).collect();
        for format in ahead {
            let Reverse(begins) = free_at.pop().unwrap_or_default();
            free_at.push(Reverse(begins + chance.choice(&drawn[*format]).copied().unwrap_or_default()));
        }
        free_at.pop().unwrap_or_default().0
    }
}

impl Running {
    /// What is left of it: as of one of the past runs that took longer than it has, else any part of the time it may take.
    fn left(&self, took: Option<&[Duration]>, chance: &mut fastrand::Rng) -> Duration {
        let longer = took.into_iter().flatten().filter_map(|took| took.checked_sub(self.elapsed));
        chance
            .choice(longer.collect::<Vec<_>>())
            .unwrap_or_else(|| self.limit.saturating_sub(self.elapsed).mul_f64(chance.f64()))
    }
}

/// So many tenths of the times are not longer than that one.
fn quantile(times: &[Duration], tenths: usize) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get((times.len() * tenths).div_ceil(10).saturating_sub(1)).copied()
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_millis;
    use crate::job::Failure;
    use crate::key::Key;

    fn job(phase: Phase) -> Job {
        let options = BTreeMap::new();
        Job {
            id: 1,
            key: Key { title: "A".into(), lang: "en".into(), font: "default".into(), format: "pdf".into(), options },
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

    fn queued() -> Job {
        job(Phase::Queued { later: None })
    }

    fn started() -> Job {
        job(Phase::Started {
            token: "t".into(),
            slot: "default.0".into(),
            worker: "1.1".into(),
            since: from_millis(0),
            deadline: from_millis(60_000),
            progress: None,
        })
    }

    fn secs(took: &[u64]) -> Vec<Duration> {
        took.iter().copied().map(Duration::from_secs).collect()
    }

    /// Two slots; epub takes 10 s each time, pdf 100 s; of mobi nothing is known.
    fn outlook(running: &[(&str, u64)], ahead: &[(&str, usize)]) -> Outlook {
        let running = running.iter().map(|(format, elapsed)| Running {
            format: (*format).to_owned(),
            elapsed: Duration::from_secs(*elapsed),
            limit: Duration::from_secs(300),
        });
        let ahead = ahead.iter().flat_map(|(format, count)| std::iter::repeat_n((*format).to_owned(), *count));
        let history = [("epub", secs(&[10, 10, 10])), ("pdf", secs(&[100, 100, 100])), ("mobi", secs(&[1, 1]))];
        let history = history.map(|(format, took)| (format.to_owned(), took)).into();
        Outlook { slots: 2, running: running.collect(), ahead: ahead.collect(), history }
    }

    fn range(outlook: &Outlook) -> Option<(u64, u64)> {
        eta(&queued(), None, outlook, from_millis(0))
    }

    #[test]
    fn the_start_is_foretold_from_the_history_of_each_format_ahead() {
        for (running, ahead, expected) in [
            (&[][..], &[][..], Some((0, 1))),
            (&[("pdf", 0)], &[], Some((0, 1))),
            (&[("pdf", 0), ("epub", 4)], &[], Some((6, 7))),
            (&[("pdf", 0), ("epub", 4)], &[("epub", 3)], Some((36, 37))),
            (&[("pdf", 0), ("epub", 4)], &[("pdf", 3)], Some((200, 201))),
            (&[], &[("pdf", 3)], Some((100, 101))),
            (&[], &[("epub", 999)], Some((4990, 4991))),
            (&[], &[("epub", 1000)], None),
            (&[], &[("mobi", 1)], None),
        ] {
            assert_eq!(range(&outlook(running, ahead)), expected, "{running:?} {ahead:?}");
        }
    }

    #[test]
    fn nothing_is_foretold_where_nothing_is_known() {
        let mut unknown = outlook(&[], &[]);
        unknown.history.insert("pdf".into(), secs(&[100, 100]));
        assert_eq!(range(&unknown), None);
        assert_eq!(range(&Outlook { slots: 0, ..outlook(&[], &[]) }), None);
        let known = outlook(&[], &[]);
        assert_eq!(eta(&queued(), Some(Waiting::Paused), &known, from_millis(0)), None);
        let later = job(Phase::Queued { later: Some((from_millis(90_000), Waiting::NotBefore)) });
        assert_eq!(eta(&later, Some(Waiting::NotBefore), &known, from_millis(0)), Some((90, 91)));
        let failed =
            Phase::Failed { reason: Failure::ExitNonzero, detail: String::new(), at: from_millis(0), token: None };
        assert_eq!(eta(&job(failed), None, &known, from_millis(0)), None);
    }

    #[test]
    fn a_run_that_takes_longer_than_any_before_ends_at_some_time_within_its_limit() {
        let (soonest, latest) = range(&outlook(&[("epub", 60), ("mobi", 60)], &[])).unwrap();
        assert!(soonest < latest && latest <= 241, "{soonest} to {latest}");
        assert_eq!(range(&outlook(&[("epub", 400), ("epub", 400)], &[])), Some((0, 1)));
    }

    #[test]
    fn where_slots_were_taken_away_the_runs_in_them_end_first() {
        let fewer = Outlook { slots: 1, ..outlook(&[("epub", 4), ("pdf", 0)], &[]) };
        assert_eq!(range(&fewer), Some((100, 101)));
    }

    #[test]
    fn the_end_is_foretold_from_what_has_passed() {
        let mut usual = outlook(&[], &[]);
        usual.history.insert("pdf".into(), secs(&[10, 10, 20]));
        for (elapsed, expected) in [(0, (10, 20)), (4_500, (5, 16)), (15_000, (0, 5)), (90_000, (0, 0))] {
            assert_eq!(eta(&started(), None, &usual, from_millis(elapsed)), Some(expected), "{elapsed}");
        }
    }
}
