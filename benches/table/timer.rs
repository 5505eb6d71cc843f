//! Time of whole processes, from posix_spawn to wait4, taken in turn: what slows one down slows all of a round down.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Something that is run once a round and says how long it took.
pub(crate) type Contender<'a> = Box<dyn FnMut() -> Duration + 'a>;

/// The times of one contender, round by round.
#[derive(Debug, Clone)]
pub(crate) struct Times(pub(crate) Vec<Duration>);

/// Runs all in turn, so many rounds, after one round that does not count.
pub(crate) fn interleave(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Times> {
    let mut all = vec![Times(Vec::new()); contenders.len()];
    for round in 0..=rounds {
        for (times, contender) in all.iter_mut().zip(contenders.iter_mut()) {
            let took = contender();
            if round > 0 {
                times.0.push(took);
            }
        }
    }
    all
}

/// How long something takes.
pub(crate) fn time<T>(body: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let value = body();
    (start.elapsed(), value)
}

#[expect(clippy::disallowed_methods, reason = "this is the room that reads clocks")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long a process takes from its start to its end, whatever it says and however it ends.
pub(crate) fn whole(command: &mut Command) -> Duration {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    time(|| command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"))).0
}

impl Times {
    pub(crate) fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    /// The time that this share of all stays within.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        sorted.get(((last as f64) * share).round() as usize).copied().unwrap_or_default()
    }

    /// The median of the ratios to another contender of the same rounds.
    pub(crate) fn over(&self, other: &Self) -> f64 {
        let mut ratios: Vec<f64> =
            self.0.iter().zip(&other.0).map(|(mine, theirs)| mine.as_secs_f64() / theirs.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Median, least and most, for people.
    pub(crate) fn shown(&self) -> String {
        format!("{} [{}–{}]", span(self.median()), span(self.quantile(0.0)), span(self.quantile(1.0)))
    }
}

/// A time with three digits.
pub(crate) fn span(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1_000.0 => format!("{micros:.0} µs"),
        ..100_000.0 => format!("{:.2} ms", micros / 1e3),
        ..1_000_000.0 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}
