//! The cache's rule, planned and carried out on real files in any order: no promise is broken, and nothing stays too long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use export_queue::cache::{Cache, Facts};
use export_queue::clock::from_millis;
use export_queue::config::{MaxAge, TtlFrom};
use export_queue::layout::Layout;
use export_queue::lock::Record;
use export_queue::retention::{Action, Dates, Policy, Standing, Stored, Wish};
use proptest::prelude::*;
use tempfile::TempDir;

use super::store::quick_dir;

const GRACE: Duration = Duration::from_secs(30);
const HOUR: TimeDelta = TimeDelta::hours(1);
const FILES: usize = 4;
const BOOK: &str = "a book";
const BYTES: u64 = BOOK.len() as u64;

/// A step that somebody takes; a file is named by its number.
#[derive(Debug, Clone)]
enum Step {
    /// Time passes, in milliseconds.
    Pass(i64),
    /// A worker publishes; by a clock that is that many seconds wrong.
    Publish { file: usize, skew: i64 },
    /// Jobs wait for these files; that is the case until the next such step.
    Need(BTreeSet<usize>),
    /// Files are planned for, one is perhaps published between plan and deed, and the plan is carried out.
    Sweep { older_than: Option<i64>, force: bool, between: Option<usize> },
    /// A path is handed out, and that is noted at the file.
    Use(usize),
    /// All files together may have that many bytes.
    Bound(u64),
    /// Somebody deletes a file by hand.
    Lose(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pass = prop::sample::select(vec![1, 999, 29_999, 30_000, 31_000, 60_000, 570_000, 600_000, 3_600_000]);
    let skew = prop::sample::select(vec![0, 0, 0, 0, 30, 90, 100_000]);
    let older_than = prop::sample::select(vec![None, None, None, Some(0), Some(45), Some(900)]);
    let sweep = (older_than, prop::bool::weighted(0.15), prop::option::weighted(0.2, 0..FILES));
    let step = prop_oneof![
        6 => pass.prop_map(Step::Pass),
        5 => (0..FILES, skew).prop_map(|(file, skew)| Step::Publish { file, skew }),
        1 => prop::collection::btree_set(0..FILES, 0..FILES).prop_map(Step::Need),
        7 => sweep.prop_map(|(older_than, force, between)| Step::Sweep { older_than, force, between }),
        3 => (0..FILES).prop_map(Step::Use),
        2 => (0..=FILES as u64).prop_map(|files| Step::Bound(files * BYTES)),
        1 => (0..FILES).prop_map(Step::Lose),
    ];
    prop::collection::vec(step, 1..60)
}

/// What is known of a file that is there.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// When it was published or, if that counts, last handed out.
    counted_at: DateTime<Utc>,
    /// The path may be opened until then: one grace after it was last handed out.
    promised_until: DateTime<Utc>,
    /// When ageing changed it, or publishing: no program can set that date, so time here is not the machine's.
    changed: DateTime<Utc>,
    is_aged: bool,
}

struct Scene {
    cache: Cache,
    dir: TempDir,
    now: DateTime<Utc>,
    known: BTreeMap<usize, Known>,
    needed: BTreeSet<usize>,
}

fn name(file: usize) -> String {
    format!("book-en-default-{file:032x}.epub")
}

impl Scene {
    fn new(max_age: MaxAge, from: TtlFrom) -> Self {
        let dir = quick_dir();
        let layout = Layout { state: dir.path().join("state"), cache: dir.path().join("cache") };
        fs::create_dir_all(layout.work()).expect("a directory");
        let gid = fs::metadata(dir.path()).expect("a directory").gid();
        let policy = Policy { max_age, grace: GRACE, from };
        let cache = Cache { layout, policy, mode: 0o640, gid, is_shared: false };
        let now = from_millis(1_700_000_000_000);
        Self { cache, dir, now, known: BTreeMap::new(), needed: BTreeSet::new() }
    }

    fn lock(&self) -> export_queue::cache::CacheLock {
        self.cache.lock(Record::default(), Duration::ZERO).expect("a lock file").expect("nobody has it")
    }

    fn publish(&mut self, file: usize, at: DateTime<Utc>) {
        let path = self.dir.path().join("made");
        fs::write(&path, BOOK).expect("a file");
        let mut finished =
            self.cache.prepare(&path, &File::open(&path).expect("it is there"), at).expect("a whole file");
        self.cache.make_shard(&name(file)).expect("a shard");
        let lock = self.lock();
        self.cache.rename(&lock, &mut finished, &name(file), at).expect("a name");
        lock.release().expect("a lock");
        let known = Known { counted_at: at, promised_until: self.now, changed: self.now, is_aged: false };
        self.known.insert(file, known);
    }

    fn note_use(&mut self, file: usize) {
        let Some(facts) = self.facts(file) else { return };
        self.cache.renew(&name(file), self.now).expect("a note");
        let known = self.known.get_mut(&file).expect("it is there");
        let after = self.cache.find(&name(file)).expect("a look").expect("it is there");
        assert_eq!(after.dates.modified, facts.dates.modified, "when it was published does not change");
        if self.cache.policy.renews(facts.dates, self.now) {
            assert!(!known.is_aged, "an aged file does not come back");
            known.counted_at = self.now;
        }
    }

    /// Makes room: the least recently promised go first, those that are needed stay, and no more than must.
    fn bound(&mut self, max: u64) {
        let policy = self.cache.policy;
        let files: Vec<(usize, Facts)> = (0..FILES).filter_map(|file| Some((file, self.facts(file)?))).collect();
        let stored = |(file, facts): &(usize, Facts)| Stored {
            dates: facts.dates,
            bytes: facts.bytes,
            is_needed: self.needed.contains(file),
        };
        let stored: Vec<Stored> = files.iter().map(stored).collect();
        let surplus = policy.surplus(&stored, max, self.now);
        let is_ready = |at: &usize| matches!(policy.standing(stored[*at].dates, self.now), Standing::Ready { .. });
        let stays: Vec<usize> = (0..files.len()).filter(|at| !surplus.contains(at)).filter(is_ready).collect();
        let free: Vec<&usize> = stays.iter().filter(|at| !stored[**at].is_needed).collect();
        let bytes = stays.len() as u64 * BYTES;
        assert!(bytes <= max || free.is_empty(), "{bytes} bytes stay, {max} may");
        assert!(surplus.is_empty() || bytes + BYTES > max, "more goes than must");
        for gone in &surplus {
            assert!(is_ready(gone) && !stored[*gone].is_needed);
            let date = |at: usize| self.known[&files[at].0].counted_at;
            assert!(free.iter().all(|stays| date(*gone) <= date(**stays)), "a file promised later goes first");
        }
        let mut lock = self.lock();
        for at in surplus {
            let (file, facts) = &files[at];
            assert!(self.cache.apply(&mut lock, facts, Action::Age, self.now).expect("a deed"));
            let known = self.known[file];
            self.known.insert(*file, Known { is_aged: true, changed: self.now, ..known });
        }
        lock.release().expect("a lock");
    }

    /// Hands out every path that is ready now, as front ends do all the time.
    fn hand_out(&mut self) {
        for (file, known) in &mut self.known {
            let Some((_, until)) = self.cache.ready(&name(*file), self.now).expect("a look") else {
                continue;
            };
            assert!(!known.is_aged, "an aged file is not ready");
            assert!(until.is_none_or(|until| until > self.now), "a promise that is over is none");
            known.promised_until = known.promised_until.max(self.now + GRACE);
        }
    }

    /// The file as a sweep sees it, with this scene's time in place of the machine's.
    fn facts(&self, file: usize) -> Option<Facts> {
        let facts = self.cache.find(&name(file)).expect("a look")?;
        let changed = self.known[&file].changed;
        Some(Facts { dates: Dates { changed, ..facts.dates }, ..facts })
    }

    fn sweep(&mut self, wish: Wish, between: Option<usize>) {
        let plan: Vec<(usize, Facts, Action)> = (0..FILES)
            .filter_map(|file| Some((file, self.facts(file)?)))
            .map(|(file, facts)| {
                let action = self.cache.policy.action(facts.dates, self.needed.contains(&file), wish, self.now);
                (file, facts, action)
            })
            .collect();
        if let Some(file) = between {
            self.publish(file, self.now);
        }
        let mut lock = self.lock();
        for (file, facts, action) in plan {
            let known = self.known[&file];
            let is_done = self.cache.apply(&mut lock, &facts, action, self.now).expect("a deed");
            assert!(!(is_done && between == Some(file)), "a file that came after the plan is not touched by it");
            match action {
                Action::Age if is_done => {
                    self.known.insert(file, Known { is_aged: true, changed: self.now, ..known });
                }
                Action::Delete if is_done => {
                    self.judge(file, known, wish.force);
                    self.known.remove(&file);
                }
                Action::Keep | Action::Age | Action::Delete => {}
            }
        }
        lock.release().expect("a lock");
    }

    /// A deletion: is it allowed?
    fn judge(&self, file: usize, known: Known, force: bool) {
        if force {
            return;
        }
        assert!(self.now >= known.promised_until, "{file} is promised until {}", known.promised_until);
        if known.is_aged {
            assert!(self.now >= known.changed + GRACE, "{file} was aged at {}", known.changed);
        } else {
            let MaxAge::After(max) = self.cache.policy.max_age else { panic!("{file} was to be kept for ever") };
            assert!(self.now >= known.counted_at + max, "{file} counts from {}", known.counted_at);
            assert!(
                !self.needed.contains(&file) || self.now >= known.counted_at + max + HOUR,
                "{file} is a base that a job waits for"
            );
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Pass(millis) => self.now += TimeDelta::milliseconds(*millis),
            Step::Publish { file, skew } => self.publish(*file, self.now + TimeDelta::seconds(*skew)),
            Step::Need(files) => self.needed.clone_from(files),
            Step::Sweep { older_than, force, between } => {
                let older_than = older_than.map(|secs: i64| Duration::from_secs(secs.unsigned_abs()));
                self.sweep(Wish { older_than, force: *force }, *between);
            }
            Step::Use(file) => self.note_use(*file),
            Step::Bound(max) => self.bound(*max),
            Step::Lose(file) => {
                if self.known.remove(file).is_some() {
                    fs::remove_file(self.cache.layout.published(&name(*file))).expect("it is there");
                }
            }
        }
    }

    /// What is there is what is known.
    fn compare(&self) {
        for file in 0..FILES {
            let is_there = self.cache.find(&name(file)).expect("a look").is_some();
            assert_eq!(is_there, self.known.contains_key(&file), "{file}");
        }
        let mut walked: Vec<String> =
            self.cache.walk(|trouble| panic!("{trouble}")).map(|file| file.filename).collect();
        walked.sort();
        assert_eq!(walked, self.known.keys().map(|file| name(*file)).collect::<Vec<_>>());
    }

    /// Nothing is overdue after a sweep.
    fn nothing_is_overdue(&self) {
        let MaxAge::After(max) = self.cache.policy.max_age else { return };
        for (file, known) in &self.known {
            let spared = if self.needed.contains(file) { HOUR } else { TimeDelta::zero() };
            assert!(self.now < known.counted_at + max + spared, "{file} is overdue: {known:?}");
        }
    }
}

fn play(max_age: MaxAge, from: TtlFrom, steps: &[Step]) {
    let mut scene = Scene::new(max_age, from);
    for step in steps {
        scene.hand_out();
        scene.take(step);
        scene.compare();
        if matches!(step, Step::Sweep { .. }) {
            scene.nothing_is_overdue();
        }
    }
    // The end of everything: what nobody needs is gone one grace after it was asked to go.
    scene.needed.clear();
    scene.hand_out();
    scene.sweep(Wish { older_than: Some(Duration::ZERO), force: false }, None);
    for file in 0..FILES {
        assert!(scene.cache.ready(&name(file), scene.now).expect("a look").is_none(), "{file} is handed out");
    }
    scene.now += GRACE;
    scene.sweep(Wish::default(), None);
    assert!(scene.known.is_empty(), "left: {:?}", scene.known);
    scene.compare();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_promise_of_the_cache_is_broken_and_nothing_stays_too_long(
        max_age in prop::sample::select(vec![
            MaxAge::After(Duration::from_secs(600)), MaxAge::After(Duration::from_secs(60)), MaxAge::Never,
        ]),
        from in prop::sample::select(vec![TtlFrom::Published, TtlFrom::Accessed]),
        steps in steps(),
    ) {
        play(max_age, from, &steps);
    }
}
