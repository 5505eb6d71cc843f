//! How long a file is promised and when it goes: facts and a time give a plan, others carry it out.
//!
//! A file is ready until `max_age − serve_grace` after it was published and deleted only after `max_age`, so that every path
//! that was handed out stays openable for at least the grace, with no lock taken by readers. For any other reason a file is
//! first *aged*: taken out of `ready`, and deleted one grace later. Age counts from publishing, or from the last time the
//! file was handed out; a promise never rests on that renewal, it is only made longer by it.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock::from_millis;
use crate::config::{MaxAge, TtlFrom};

/// How far ahead of the clock a file's date may be.
const LEAP: Duration = Duration::from_secs(60);

/// A file is renewed no more often than this, or where files live for less than four of it, than a quarter of their life.
const RENEWED: Duration = Duration::from_secs(60);

/// How long a base file is spared beyond its age while a waiting job may still use it.
pub const BASE_SPARED: Duration = Duration::from_secs(3600);

/// The rule of the cache.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Age at which a file is deleted.
    pub max_age: MaxAge,
    /// How long before that it stops being ready.
    pub grace: Duration,
    /// What age is counted from.
    pub from: TtlFrom,
}

/// The dates of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dates {
    /// When it was published, or what ageing has set.
    pub modified: DateTime<Utc>,
    /// When it was last handed out, or read as far as the file system notes it.
    pub accessed: DateTime<Utc>,
    /// When its inode last changed.
    pub changed: DateTime<Utc>,
}

/// A file, as the bound on all of them sees it.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    /// Its dates.
    pub dates: Dates,
    /// Its size.
    pub bytes: u64,
    /// A waiting job may still use it.
    pub is_needed: bool,
}

/// Where a file stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its path may be handed out, until then (`None`: for ever).
    Ready {
        /// The end of the promise.
        until: Option<DateTime<Utc>>,
    },
    /// Not handed out any more, but somebody may still open it.
    Expired,
    /// May be deleted.
    Due,
    /// Its date is in the future: a clock was wrong. Not ready; to be aged.
    Strange,
}

/// What to do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// Take it out of `ready` by setting its date.
    Age,
    /// Delete it.
    Delete,
}

/// What a sweep is asked to take beyond what is over age.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// Files at least that old (zero: all).
    pub older_than: Option<Duration>,
    /// Break the promise: delete at once.
    pub force: bool,
}

impl Policy {
    /// Where a file with those dates stands.
    pub fn standing(&self, dates: Dates, now: DateTime<Utc>) -> Standing {
        if dates.modified > now + LEAP {
            return Standing::Strange;
        }
        let counted = self.counted(dates, now);
        let age = (now - counted).to_std().unwrap_or_default();
        match self.max_age {
            MaxAge::Never if dates.modified.timestamp_millis() > 0 => Standing::Ready { until: None },
            // Aged: its change time says since when.
            MaxAge::Never => match (now - dates.changed).to_std() {
                Ok(since) if since >= self.grace => Standing::Due,
                _ => Standing::Expired,
            },
            MaxAge::After(max) if age >= max => Standing::Due,
            MaxAge::After(max) if age >= max.saturating_sub(self.grace) => Standing::Expired,
            MaxAge::After(max) => Standing::Ready { until: Some(counted + (max.saturating_sub(self.grace))) },
        }
    }

    /// The date that age counts from; an access in the future counts for nothing.
    pub fn counted(&self, dates: Dates, now: DateTime<Utc>) -> DateTime<Utc> {
        match self.from {
            TtlFrom::Accessed if dates.accessed <= now + LEAP => dates.modified.max(dates.accessed),
            TtlFrom::Accessed | TtlFrom::Published => dates.modified,
        }
    }

    /// Whether handing a file out at that time renews it: it was ready then, and was not renewed for a minute.
    pub fn renews(&self, dates: Dates, at: DateTime<Utc>) -> bool {
        self.from == TtlFrom::Accessed
            && self.counted(dates, at) <= self.renewed_before(at)
            && matches!(self.standing(dates, at), Standing::Ready { .. })
    }

    /// A file that was renewed after this is not renewed then.
    pub fn renewed_before(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        match self.max_age {
            MaxAge::Never => at - RENEWED,
            MaxAge::After(max) => at - RENEWED.min(max / 4),
        }
    }

    /// Which of these files to age so that the ready ones among them fit into `max_bytes`: the least recently promised
    /// first, and none that a waiting job may still use.
    pub fn surplus(&self, files: &[Stored], max_bytes: u64, now: DateTime<Utc>) -> Vec<usize> {
        let is_ready = |file: &Stored| matches!(self.standing(file.dates, now), Standing::Ready { .. });
        let mut ready: Vec<usize> = (0..files.len()).filter(|at| is_ready(&files[*at])).collect();
        ready.sort_by_key(|at| self.counted(files[*at].dates, now));
        let mut bytes: u64 = ready.iter().map(|at| files[*at].bytes).sum();
        let mut surplus = Vec::new();
        for at in ready.into_iter().filter(|at| !files[*at].is_needed) {
            if bytes <= max_bytes {
                break;
            }
            bytes -= files[at].bytes;
            surplus.push(at);
        }
        surplus
    }

    /// What to do with a file; `needed` says that a waiting job may still use it.
    pub fn action(&self, dates: Dates, needed: bool, wish: Wish, now: DateTime<Utc>) -> Action {
        let age = (now - self.counted(dates, now)).to_std().unwrap_or_default();
        let wished = wish.older_than.is_some_and(|than| age >= than);
        if wished && wish.force {
            return Action::Delete;
        }
        match self.standing(dates, now) {
            Standing::Due if needed && !self.is_beyond_sparing(age) => Action::Keep,
            Standing::Due => Action::Delete,
            Standing::Strange => Action::Age,
            Standing::Ready { .. } if wished => Action::Age,
            Standing::Ready { .. } | Standing::Expired => Action::Keep,
        }
    }

    fn is_beyond_sparing(&self, age: Duration) -> bool {
        match self.max_age {
            MaxAge::Never => false,
            MaxAge::After(max) => age >= max + BASE_SPARED,
        }
    }

    /// The date that takes a file out of `ready` and lets it go one grace later.
    pub fn aged(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self.max_age {
            MaxAge::Never => from_millis(0),
            MaxAge::After(max) => now - max.saturating_sub(self.grace),
        }
    }

    /// Files published before this are due, if there is such a time.
    pub fn due_before(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.max_age {
            MaxAge::Never => None,
            MaxAge::After(max) => Some(now - max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Policy = Policy {
        max_age: MaxAge::After(Duration::from_secs(600)),
        grace: Duration::from_secs(30),
        from: TtlFrom::Published,
    };
    const KEPT: Policy = Policy { max_age: MaxAge::Never, ..TEN };
    const USED: Policy = Policy { from: TtlFrom::Accessed, ..TEN };

    fn at(secs: i64) -> DateTime<Utc> {
        from_millis(1_000_000_000_000 + secs * 1000)
    }

    fn dates(secs: i64) -> Dates {
        Dates { modified: at(secs), accessed: at(secs), changed: at(secs) }
    }

    #[test]
    fn a_file_is_ready_for_nine_and_a_half_minutes_and_goes_after_ten() {
        let table = [
            (0, Standing::Ready { until: Some(at(570)) }),
            (569, Standing::Ready { until: Some(at(570)) }),
            (570, Standing::Expired),
            (599, Standing::Expired),
            (600, Standing::Due),
            (-30, Standing::Ready { until: Some(at(570)) }),
            (-60, Standing::Ready { until: Some(at(570)) }),
            (-61, Standing::Strange),
        ];
        for (age, standing) in table {
            assert_eq!(TEN.standing(dates(0), at(age)), standing, "at {age} s");
        }
    }

    #[test]
    fn a_file_that_is_kept_for_ever_is_ready_and_never_due() {
        for age in [0, 600, 1_000_000] {
            assert_eq!(KEPT.standing(dates(0), at(age)), Standing::Ready { until: None }, "at {age} s");
        }
        assert_eq!(KEPT.due_before(at(600)), None);
        assert_eq!(TEN.due_before(at(600)), Some(at(0)));
    }

    #[test]
    fn an_aged_file_is_expired_at_once_and_due_one_grace_later() {
        for policy in [TEN, KEPT, USED] {
            let aged = Dates { modified: policy.aged(at(0)), accessed: policy.aged(at(0)), changed: at(0) };
            assert_eq!(policy.standing(aged, at(0)), Standing::Expired);
            assert_eq!(policy.standing(aged, at(29)), Standing::Expired);
            assert_eq!(policy.standing(aged, at(30)), Standing::Due);
        }
    }

    #[test]
    fn only_force_deletes_what_is_promised() {
        let all = Wish { older_than: Some(Duration::ZERO), force: false };
        assert_eq!(TEN.action(dates(0), false, all, at(5)), Action::Age);
        assert_eq!(TEN.action(dates(0), false, Wish { force: true, ..all }, at(5)), Action::Delete);
        assert_eq!(TEN.action(dates(0), false, Wish::default(), at(5)), Action::Keep);
    }

    #[test]
    fn a_file_that_is_used_stays_and_renewing_it_once_a_minute_is_enough() {
        let handed_out = Dates { accessed: at(500), ..dates(0) };
        assert_eq!(USED.standing(handed_out, at(900)), Standing::Ready { until: Some(at(1070)) });
        assert_eq!(TEN.standing(handed_out, at(900)), Standing::Due);
        let table = [(59, false), (60, true), (569, true), (570, false), (700, false)];
        for (secs, renews) in table {
            assert_eq!(USED.renews(dates(0), at(secs)), renews, "at {secs} s");
            assert!(!TEN.renews(dates(0), at(secs)));
        }
        assert!(!USED.renews(handed_out, at(559)));
        let short = Policy { max_age: MaxAge::After(Duration::from_secs(80)), ..USED };
        assert!(short.renews(dates(0), at(20)) && !short.renews(dates(0), at(19)), "a quarter of its life is enough");
        let of_a_wrong_clock = Dates { accessed: at(9999), ..dates(0) };
        assert_eq!(USED.standing(of_a_wrong_clock, at(600)), Standing::Due);
    }

    #[test]
    fn the_least_recently_promised_files_make_room() {
        let file = |secs, bytes| Stored { dates: dates(secs), bytes, is_needed: false };
        let needed = Stored { is_needed: true, ..file(1, 10) };
        let expired = file(-571, 1000);
        let files = [file(30, 10), file(20, 10), needed, file(10, 10), expired];
        for (max, surplus) in [(40, vec![]), (39, vec![3]), (30, vec![3]), (29, vec![3, 1]), (0, vec![3, 1, 0])] {
            assert_eq!(TEN.surplus(&files, max, at(40)), surplus, "into {max} bytes");
        }
        let used = Stored { dates: Dates { accessed: at(35), ..dates(10) }, ..file(10, 10) };
        assert_eq!(USED.surplus(&[file(20, 10), used], 10, at(40)), [0]);
        assert_eq!(KEPT.surplus(&[file(20, 10), used], 10, at(40)), [1]);
    }

    #[test]
    fn a_needed_base_is_spared_for_an_hour() {
        assert_eq!(TEN.action(dates(0), true, Wish::default(), at(700)), Action::Keep);
        assert_eq!(TEN.action(dates(0), false, Wish::default(), at(700)), Action::Delete);
        assert_eq!(TEN.action(dates(0), true, Wish::default(), at(600 + 3600)), Action::Delete);
    }
}
