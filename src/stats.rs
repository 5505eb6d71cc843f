//! Figures of past runs, group by group: how many, how they ended, how long people waited and exporters took.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::{Ended, Outcome};

/// What runs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// The format.
    Format,
    /// The language.
    Lang,
    /// The day of its end, UTC.
    Day,
    /// The client that asked first.
    Client,
}

impl Dimension {
    /// Every dimension and its name.
    pub const ALL: &[(Self, &str)] =
        &[(Self::Format, "format"), (Self::Lang, "lang"), (Self::Day, "day"), (Self::Client, "client")];

    /// Its name.
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(dimension, _)| *dimension == self).map_or("", |(_, name)| name)
    }

    fn of(self, run: &Ended) -> String {
        match self {
            Self::Format => run.format.clone(),
            Self::Lang => run.lang.clone(),
            Self::Day => run.finished_at.format("%Y-%m-%d").to_string(),
            Self::Client => run.client.clone().unwrap_or_default(),
        }
    }
}

impl FromStr for Dimension {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|(dimension, _)| *dimension);
        let names: Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
        found.ok_or_else(|| format!("{text} is none of: {}", names.join(", ")))
    }
}

/// Runs as they are seen, to be told group by group.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    by: Vec<Dimension>,
    groups: BTreeMap<Vec<String>, Gathered>,
}

#[derive(Debug, Clone, Default)]
struct Gathered {
    counts: [u64; Outcome::ALL.len()],
    took: Vec<Duration>,
    waited: Vec<Duration>,
    bytes: u64,
    cpu: Duration,
    peak_memory: u64,
}

/// The figures of one group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// What its runs have in common, dimension by dimension.
    pub group: Vec<String>,
    /// How many there are.
    pub runs: u64,
    /// How many ended so, in the order of [`Outcome::ALL`].
    pub counts: [u64; Outcome::ALL.len()],
    /// How long the exports took that were published.
    pub took: Option<Spread>,
    /// How long people waited for the start of those.
    pub waited: Option<Spread>,
    /// The published bytes.
    pub bytes: u64,
    /// Processor time of all runs.
    pub cpu: Duration,
    /// The largest memory of any run, in bytes.
    pub peak_memory: u64,
}

/// How times are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Half of them are not longer.
    pub p50: Duration,
    /// 95 of a hundred are not longer.
    pub p95: Duration,
    /// None is longer.
    pub max: Duration,
}

impl Spread {
    /// The spread of some times; `None` of none.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let at = |hundredths: usize| times.get((times.len() * hundredths).div_ceil(100).checked_sub(1)?).copied();
        Some(Self { p50: at(50)?, p95: at(95)?, max: at(100)? })
    }
}

impl Figures {
    /// How many runs ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize]
    }
}

impl Stats {
    /// Statistics in groups of runs that have these in common; without any, all runs are one group.
    pub fn by(by: &[Dimension]) -> Self {
        Self { by: by.to_vec(), ..Self::default() }
    }

    /// Takes a run in.
    pub fn add(&mut self, run: &Ended) {
        let group = self.by.iter().map(|dimension| dimension.of(run)).collect();
        let gathered = self.groups.entry(group).or_default();
        gathered.counts[run.outcome as usize] += 1;
        if run.outcome == Outcome::Ready {
            gathered.took.push(span(run.started_at, run.finished_at));
            gathered.waited.push(span(run.submitted_at, run.started_at));
            gathered.bytes += run.bytes.unwrap_or(0);
        }
        gathered.cpu += Duration::from_millis(run.cpu_millis.unwrap_or(0));
        gathered.peak_memory = gathered.peak_memory.max(run.peak_memory.unwrap_or(0));
    }

    /// The figures, in the order of the groups' names.
    pub fn figures(self) -> Vec<Figures> {
        let figures = |(group, gathered): (Vec<String>, Gathered)| Figures {
            group,
            runs: gathered.counts.iter().sum(),
            counts: gathered.counts,
            took: Spread::of(gathered.took),
            waited: Spread::of(gathered.waited),
            bytes: gathered.bytes,
            cpu: gathered.cpu,
            peak_memory: gathered.peak_memory,
        };
        self.groups.into_iter().map(figures).collect()
    }
}

/// From one time to a later one; nothing where a clock was set back between them.
fn span(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_millis;

    fn run(format: &str, outcome: Outcome, took: i64) -> Ended {
        Ended {
            format: format.to_owned(),
            lang: "en".to_owned(),
            client: None,
            outcome,
            reason: None,
            submitted_at: from_millis(86_400_000),
            started_at: from_millis(86_401_000),
            finished_at: from_millis(86_401_000 + took * 1000),
            bytes: (outcome == Outcome::Ready).then_some(7),
            peak_memory: Some(took.unsigned_abs()),
            cpu_millis: Some(250),
        }
    }

    #[test]
    fn runs_are_counted_group_by_group_and_only_published_ones_timed() {
        let mut stats = Stats::by(&[Dimension::Day, Dimension::Format]);
        for took in 1..=100 {
            stats.add(&run("epub", Outcome::Ready, took));
        }
        stats.add(&run("epub", Outcome::FailedTimeout, 300));
        stats.add(&run("azw3", Outcome::FailedUnknown, -5));
        let [azw3, epub] = &stats.figures()[..] else { panic!("two groups") };
        assert_eq!(epub.group, ["1970-01-02", "epub"]);
        let secs = Duration::from_secs;
        assert_eq!((epub.runs, epub.count(Outcome::Ready), epub.count(Outcome::FailedTimeout)), (101, 100, 1));
        assert_eq!(epub.took, Some(Spread { p50: secs(50), p95: secs(95), max: secs(100) }));
        assert_eq!(epub.waited, Some(Spread { p50: secs(1), p95: secs(1), max: secs(1) }));
        assert_eq!((epub.bytes, epub.cpu, epub.peak_memory), (700, Duration::from_millis(25_250), 300));
        assert_eq!((azw3.runs, azw3.took, azw3.count(Outcome::FailedUnknown)), (1, None, 1));
    }

    #[test]
    fn without_a_dimension_all_runs_are_one_group() {
        let mut stats = Stats::by(&[]);
        for format in ["epub", "pdf"] {
            stats.add(&run(format, Outcome::Ready, 1));
        }
        let figures = stats.figures();
        assert_eq!((figures.len(), figures[0].runs), (1, 2));
    }
}
